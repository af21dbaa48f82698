"""An attempt that never left the process: there is nothing to withdraw, and nobody waits for that."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.deadlines import CONNECT_SECONDS_MIN, connect_seconds_for
from holdfast.core.effects import Apply, Effect, Listen, Wait, mark_never_sent, never_sent
from holdfast.engines.postgres.advisory import store as advisory_store
from holdfast.errors import EngineUnavailable
from holdfast.protocols import records, tickets
from holdfast.rules.requests import Granted, Withdraw
from protocols.driver import LOST_REPLY, REFUSED, SPEC, Fault, Faults, World, always


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(params=[EngineUnavailable("wrong password"), KeyboardInterrupt("wrong password")], ids=repr)
def unsent(request: pytest.FixtureRequest) -> Fault:
    """An error, or an interrupt, while the connection is opened."""
    mark_never_sent(request.param)
    return Fault(request.param, arrives=False)


def in_turn(*faults: Fault | None) -> Faults:
    """One for each request that is made, the last for all that follow."""
    left = list(faults)

    def fault(op: Effect) -> Fault | None:
        if not isinstance(op, Apply):
            return None
        return left.pop(0) if len(left) > 1 else left[0]

    return fault


@pytest.mark.parametrize("timeout", [0.0, 3.0, None])
def test_nothing_is_withdrawn_that_was_never_sent(world: World, unsent: Fault, timeout: float | None) -> None:
    client = world.client("a")
    before = world.now
    task = client.start(records.acquire(client.client_state, SPEC, "o", timeout), always(unsent))
    world.finish(task)
    assert task.error is unsent.error
    assert world.now - before < 0.1
    assert not any(isinstance(op, Listen | Wait) for op in task.ops)
    assert not client.client_state.cleanup_tasks
    world.pass_time(10)
    assert "keeper" not in client.services


def test_in_a_crowd_neither(world: World, unsent: Fault) -> None:
    client = world.client("a")
    client.client_state.mark_contended("x")
    before = world.now
    task = client.start(records.acquire(client.client_state, SPEC, "o", 3.0), always(unsent))
    world.finish(task)
    assert task.error is unsent.error
    assert world.now - before < 0.1
    assert not client.client_state.cleanup_tasks


def test_what_may_have_been_sent_before_is_withdrawn(world: World, unsent: Fault) -> None:
    """The first request was lost on its way back: that the second was not sent does not undo the first."""
    client = world.client("a")
    faults = in_turn(LOST_REPLY, unsent)
    task = client.start(records.acquire(client.client_state, SPEC, "o", 3.0), faults)
    world.finish(task)
    assert task.error is unsent.error
    world.pass_time(10)
    keeper = client.services["keeper"]
    assert any(isinstance(request, Withdraw) for request in keeper.asked())
    assert not world.records.get("x") or not world.records["x"].holders


def test_what_was_refused_before_is_not(world: World, unsent: Fault) -> None:
    client = world.client("a")
    task = client.start(records.acquire(client.client_state, SPEC, "o", 3.0), in_turn(REFUSED, unsent))
    world.finish(task)
    assert task.error is unsent.error
    assert not client.client_state.cleanup_tasks


def test_a_queued_attempt_is_withdrawn(world: World, unsent: Fault) -> None:
    holder, client = world.client("h"), world.client("a")
    holder.acquire()
    task = client.start(records.acquire(client.client_state, SPEC, "o", 30.0), in_turn(None, None, unsent))
    world.finish(task)
    assert task.error is unsent.error
    world.pass_time(5)
    assert not world.records["x"].queue


@pytest.mark.parametrize(
    ("timeout", "patience"),
    [(0.0, CONNECT_SECONDS_MIN), (0.1, CONNECT_SECONDS_MIN), (2.0, 2.0), (None, None)],
)
def test_a_connection_is_waited_for_as_long_as_the_caller_has_time(
    world: World, timeout: float | None, patience: float | None
) -> None:
    client = world.client("a")
    task = client.start(records.acquire(client.client_state, SPEC, "o", timeout))
    world.finish(task)
    asked = next(op for op in task.ops if isinstance(op, Apply))
    assert asked.connect_seconds == patience == connect_seconds_for(timeout)


def test_what_is_left_of_the_time_counts(world: World) -> None:
    client = world.client("a")
    task = client.start(records.acquire(client.client_state, SPEC, "o", 2.0), always(REFUSED))
    world.finish(task)
    given = [op.connect_seconds for op in task.ops if isinstance(op, Apply)]
    assert len(given) > 2
    assert all(each is not None for each in given)
    assert given == sorted(given, reverse=True)  # type: ignore[type-var]  # none of them is None
    assert given[-1] == CONNECT_SECONDS_MIN


@pytest.mark.parametrize("family", [tickets, advisory_store], ids=lambda family: family.__name__)
def test_several_steps_of_which_the_first_was_applied(
    family: Any, unsent: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the second was never sent does not undo the first: the caller withdraws both."""
    granted: Granted = tuple.__new__(Granted, ())
    errors = iter([None, unsent.error, unsent.error])

    async def apply(*_: object) -> Granted:
        error = next(errors)
        if error is None:
            return granted
        mark_never_sent(error)
        raise error

    async def not_together(*_: object) -> None:
        """The engine cannot, or a name is in use."""

    monkeypatch.setattr(family, "apply", apply)
    monkeypatch.setattr(tickets, "acquire_together", not_together)
    for expected in (False, True):
        steps = family.apply_in_order(None, (("a", None), ("b", None)), True)
        with pytest.raises(BaseException, match="wrong password") as raised:
            steps.send(None)
        assert never_sent(raised.value) is expected
