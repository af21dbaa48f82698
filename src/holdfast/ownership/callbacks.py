"""The user's functions: those of one partition are called one after the other, in order; those of different
partitions side by side. A loss is reported at once, whatever else is going on.
"""

from __future__ import annotations

import inspect
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

from ..errors import InvalidArgument
from ..protocols.client_state import LeaseState
from ..recipes.ownership import Held

__all__ = ["Call", "Callbacks", "Event", "Function"]

Event = Literal["assigned", "revoked", "lost"]
Function = Callable[[int, Any], object]
"""Takes the partition and its lease."""

log: Final = logging.getLogger("holdfast")


class Call:
    """Functions to be called about one partition."""

    __slots__ = ("event", "functions", "held")

    def __init__(self, event: Event, held: Held, functions: Iterable[Function]) -> None:
        self.event = event
        self.held = held
        self.functions = tuple(functions)


class Callbacks(ABC):
    """The listener of a member. What runs the calls, threads or tasks, is the facades' concern."""

    may_await = False

    def __init__(self, wrap: Callable[[LeaseState], Any]) -> None:
        self._wrap = wrap
        self._functions: dict[Event, list[Function]] = {"assigned": [], "revoked": [], "lost": []}
        self._chains: dict[int, deque[Call]] = {}
        """Partition → its calls, the one under way first."""
        self._guard = threading.Lock()
        self.wake_up: Callable[[], None] = lambda: None
        """Wakes the member."""

    def add(self, event: Event, function: Function | None) -> None:
        if function is not None:
            self._functions[event].append(self.checked(event, function))

    def checked(self, event: Event, function: Function) -> Function:
        if not callable(function):
            raise InvalidArgument(
                f"on_{event} takes a function of the partition and its lease; this is"
                f" {type(function).__name__}"
            )
        if not self.may_await and inspect.iscoroutinefunction(function):
            raise InvalidArgument(
                f"the on_{event} callback is async, and this member is for threads: join with"
                " holdfast.ownership.aio"
            )
        return function

    # --- what the member reports

    def granted(self, held: Held) -> Any:
        lease = self._wrap(held.state)
        lease.on_lost(lambda _: self._report_loss(self._call_of_loss(held)))
        held.lease = lease
        return lease

    def assigned(self, held: Held) -> None:
        """Each function is called once, also a function that is added at this moment."""
        with self._guard:
            functions = [each for each in self._functions["assigned"] if each not in held.informed]
            held.informed.extend(functions)
        self._enqueue("assigned", held, functions)

    def revoked(self, held: Held) -> None:
        self._enqueue("revoked", held, self._functions["revoked"])

    def overdue(self, held: Held) -> None:
        call = self._call_of_loss(held)
        if call.functions:
            self._begin(call)
            self._start(call)

    def _enqueue(self, event: Event, held: Held, functions: Iterable[Function]) -> None:
        """Call these functions after the earlier ones of the partition have returned."""
        call = Call(event, held, functions)
        if not call.functions:
            return
        self._begin(call)
        with self._guard:
            chain = self._chains.setdefault(held.partition, deque())
            chain.append(call)
            is_first = len(chain) == 1
        if is_first:
            self._start_chain(held.partition)

    def _call_of_loss(self, held: Held) -> Call:
        """Of nothing, if no function was called about its assignment yet: from here on, none will be."""
        with self._guard:
            held.is_loss_known = True
            is_known = held.is_assignment_known or not held.informed
            return Call("lost", held, self._functions["lost"] if is_known else ())

    # --- bookkeeping of the calls

    def _functions_of(self, call: Call) -> tuple[Function, ...]:
        """Those to be called now. After the loss of a partition, on_assigned and on_revoked come too late."""
        with self._guard:
            if call.event != "lost" and call.held.is_loss_known:
                return ()
            if call.event == "assigned":
                call.held.is_assignment_known = True
            return call.functions

    def _begin(self, call: Call) -> None:
        with self._guard:
            call.held.calls += 1

    def _finish(self, call: Call) -> None:
        with self._guard:
            call.held.calls -= 1
        self.wake_up()

    def _next_call(self, partition: int) -> Call:
        with self._guard:
            return self._chains[partition][0]

    def _has_more(self, partition: int) -> bool:
        """The first call of the chain has returned. Whether there is another."""
        with self._guard:
            chain = self._chains[partition]
            chain.popleft()
            if not chain:
                del self._chains[partition]
            return bool(chain)

    def _finish_loss(self, call: Call) -> None:
        call.held.is_loss_reported = True
        self.wake_up()

    @staticmethod
    def _failed(call: Call, error: BaseException) -> None:
        log.error(
            "holdfast: an on_%s callback of partition %d raised",
            call.event,
            call.held.partition,
            exc_info=error,
        )

    # --- what runs them

    @abstractmethod
    def _start_chain(self, partition: int) -> None: ...

    @abstractmethod
    def _start(self, call: Call) -> None: ...

    @abstractmethod
    def _report_loss(self, call: Call) -> Any: ...
