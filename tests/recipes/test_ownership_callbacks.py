"""The order in which a member's functions are called, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.ownership.callbacks import Call, Callbacks
from holdfast.recipes.ownership import Held


class Lease:
    def on_lost(self, function: Callable[[Any], Any]) -> None:
        self.lose = function


class StepByStep(Callbacks):
    """Begins what waits when it is told to; a loss at once."""

    def __init__(self) -> None:
        super().__init__(lambda state: Lease())
        self.waiting: list[int] = []
        self.calls: list[tuple[str, int]] = []
        self.add("assigned", lambda partition, lease: self.calls.append(("assigned", partition)))
        self.add("revoked", lambda partition, lease: self.calls.append(("revoked", partition)))
        self.add("lost", lambda partition, lease: self.calls.append(("lost", partition)))

    def hold(self, partition: int) -> Held:
        state: Any = None
        held = Held(partition, state)
        self.granted(held)
        self.assigned(held)
        return held

    def begin(self) -> None:
        for partition in self.waiting:
            has_more = True
            while has_more:
                self._start(self._next_call(partition))
                has_more = self._has_more(partition)
        self.waiting.clear()

    def _start_chain(self, partition: int) -> None:
        self.waiting.append(partition)

    def _start(self, call: Call) -> None:
        for function in self._functions_of(call):
            function(call.held.partition, call.held.lease)
        self._finish(call)

    def _report_loss(self, call: Call) -> None:
        for function in self._functions_of(call):
            function(call.held.partition, call.held.lease)
        self._finish_loss(call)


def test_a_partition_that_is_lost_before_its_work_began_is_not_assigned_afterwards() -> None:
    member = StepByStep()
    held = member.hold(3)
    held.lease.lose(None)
    member.begin()
    assert member.calls == []
    assert (held.calls, held.is_loss_reported) == (0, True)


def test_a_partition_that_is_lost_is_not_revoked_afterwards() -> None:
    member = StepByStep()
    held = member.hold(3)
    member.begin()
    member.revoked(held)
    held.lease.lose(None)
    member.begin()
    assert member.calls == [("assigned", 3), ("lost", 3)]
    assert (held.calls, held.is_loss_reported) == (0, True)
