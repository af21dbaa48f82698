"""Several locks at once: all of them or none (``all``), or the first that is free (``any``).

Callers that sort by name wait for each other in one direction only, so they cannot deadlock. A caller that
insists on an order of its own waits a moment only for a lock while it holds others, then releases everything
and begins again after a random pause.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from ..core.arguments import Spec
from ..core.effects import Now, Pause, TransientError
from ..core.printable import printable
from ..errors import EngineUnavailable, HoldfastError, InvalidArgument, LockTimeout, NotHeld
from ..protocols import records
from ..protocols.acquisitions import OBSERVERS
from ..protocols.client_state import ClientState, LeaseState
from ..protocols.lock_info import describe_holders
from ..protocols.locks import Caller, Entry, HasState, LockCore, latest_state, not_held_error
from .jitter import random_fraction, random_pause

__all__ = [
    "AnyCore",
    "Group",
    "MultiCore",
    "Order",
    "acquire",
    "acquire_any",
    "check",
    "check_order",
    "cores_of",
    "leave",
    "release",
]

log = logging.getLogger("holdfast")

Order = Literal["sorted", "given"]

PATIENCE_SECONDS: Final = 0.1
"""How long a caller with an order of its own waits for a lock while it holds others. Random, between half of
it and one and a half, so that two such callers do not give up together."""

BACK_OFF_SECONDS_MIN: Final = 0.01
BACK_OFF_SECONDS_MAX: Final = 1.0
"""Of its pauses after it released everything: each is random below a bound that doubles."""

ASK_AGAIN_SECONDS_MIN: Final = 0.01
ASK_AGAIN_SECONDS_MAX: Final = 0.25
"""Of the pauses of ``any`` while none is free, likewise."""

NAMES_SHOWN: Final = 5

L = TypeVar("L", bound=HasState)


class HasGroup(Protocol):
    """The leases of several locks, of either facade."""

    @property
    def _state(self) -> Group: ...

    def values(self) -> Collection[Any]: ...


G = TypeVar("G", bound=HasGroup)


class Group:
    """Several grants that are held as one: the loss of one is the loss of all."""

    __slots__ = (
        "client_state",
        "ended_by",
        "ended_early",
        "has_fired",
        "loss_callbacks",
        "states",
    )

    def __init__(self, client_state: ClientState, states: tuple[LeaseState, ...]) -> None:
        self.client_state = client_state
        self.states = states
        self.ended_early = False
        """It was released as a whole."""
        self.has_fired = False
        self.loss_callbacks: list[Callable[[], object]] = []
        """Called once, at the loss of whichever lease is lost first."""

    @property
    def caller(self) -> Caller | None:
        """The thread or task that acquired them."""
        return self.states[0].caller

    @caller.setter
    def caller(self, caller: Caller) -> None:
        for state in self.states:
            state.caller = caller

    @property
    def ended(self) -> str | None:
        """How it ended; None: at least one of its leases has not ended."""
        states = self.latest()
        if any(state.ended == "forked" for state in states):
            return "forked"
        if self.ended_early or all(state.ended is not None for state in states):
            return states[0].ended or "released"
        return None

    def latest(self) -> list[LeaseState]:
        """The states of its leases; if a lease was downgraded, the state of the read lease."""
        return [latest_state(state) for state in self.states]

    def lost_state(self, now: float) -> LeaseState | None:
        """The lease whose loss lost them all; None: they can be relied on."""
        lost = [state for state in self.latest() if state.loss(now) is not None]
        if not lost:
            return None
        first = next((state for state in lost if state.reason != "together"), lost[0])
        self.lose_all(first)
        return first

    def lose_all(self, first: LeaseState) -> None:
        """The others can no longer be relied on either. In the engine they are held until they are released.

        The timer reports these losses.
        """
        others = [state for state in self.latest() if state.reason is None and state.ended is None]
        for state in others:
            state.mark_lost("together", f"{first.kind} {first.name!r}")
        if others:
            self.client_state.wake_timer("timer")

    def remaining(self, now: float) -> float:
        if self.lost_state(now) is not None:
            return 0.0
        return min(state.remaining(now) for state in self.latest())

    def call_end_callbacks(self) -> None:
        """Each lease has those of its own."""

    def take_loss_callbacks(self) -> list[Callable[[], object]]:
        """The callbacks to call now. Each is returned once, whichever lease was lost first."""
        self.has_fired = True
        due = []
        while self.loss_callbacks:
            try:
                due.append(self.loss_callbacks.pop(0))
            except IndexError:
                break
        return due


def check(group: Group, now: float) -> None:
    """Raise unless every lease may still be relied on."""
    lost = group.lost_state(now)
    if lost is not None:
        raise lost.lost_error()
    for state in group.latest():
        if state.ended is not None:
            raise not_held_error(state)


# --- arguments ----------------------------------------------------------------------------------


def check_order(order: Order) -> Order:
    if order not in ("sorted", "given"):
        raise InvalidArgument(
            f"order is 'sorted' (by name, which cannot deadlock) or 'given' (as written); it is {order!r}"
        )
    return order


def cores_of(
    call: str,
    client: object,
    items: Sequence[object],
    named: Callable[[str], LockCore[L]],
    lock: type,
    rwlock: type,
) -> tuple[LockCore[L], ...]:
    """The locks that ``all`` or ``any`` is about, refused or accepted as a whole, before any I/O.

    ``named`` makes a lock of a name; ``lock`` and ``rwlock`` are the classes of the facade.
    """
    if not items:
        raise InvalidArgument(f"{call}() takes the names of locks: write for example {call}('a', 'b')")
    cores: dict[str, LockCore[L]] = {}
    for item in items:
        core = _core_of(call, client, item, named, lock, rwlock)
        first = cores.setdefault(core.spec.name, core).spec
        if (first.kind, first.mode, first.limit) != (core.spec.kind, core.spec.mode, core.spec.limit):
            raise InvalidArgument(
                f"{first.name!r} is given twice to {call}(), as {_described(first)} and as "
                f"{_described(core.spec)}: choose one of them"
            )
    return tuple(cores.values())


def _described(spec: Spec) -> str:
    """What a lock is asked for, for people."""
    if spec.kind == "semaphore":
        return f"a permit of {spec.limit}"
    return f"a {spec.kind}" if spec.kind != "rwlock" else f"a rwlock to {spec.mode}"


def _core_of(
    call: str, client: object, item: Any, named: Callable[[str], LockCore[L]], lock: type, rwlock: type
) -> LockCore[L]:
    if isinstance(item, str):
        return named(item)
    if isinstance(item, rwlock):
        raise InvalidArgument(
            f"{call}() takes one side of a reader/writer lock: write .read() or .write() behind it"
        )
    if isinstance(item, list | tuple | set | frozenset):
        raise InvalidArgument(
            f"{call}() takes names one by one, not a {type(item).__name__}: write {call}(*names)"
        )
    core = getattr(item, "_core", None)
    if not isinstance(item, lock) or not isinstance(core, LockCore) or isinstance(core, AnyCore):
        raise InvalidArgument(
            f"{call}() takes names and locks of this client, plain ones, read or write sides and semaphores; "
            f"this is {type(item).__name__}"
        )
    if getattr(item, "_client", None) is not client:
        raise InvalidArgument(
            f"the lock {core.spec.name!r} belongs to another client, whose locks cannot be acquired with "
            f"these: make it with this client, or give {call}() its name"
        )
    if core.reentrant:
        raise InvalidArgument(
            f"the rlock {core.spec.name!r} may be held by this thread or task already, which {call}() cannot "
            f"share: use lock(), or give {call}() its name"
        )
    return core


def _shown(names: Iterable[str], word: str) -> str:
    """The names of several locks, for people."""
    shown = [repr(name) for name in names]
    if len(shown) > NAMES_SHOWN:
        shown[NAMES_SHOWN - 1 :] = [f"{len(shown) - NAMES_SHOWN + 1} more"]
    return f" {word} ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


# --- all ----------------------------------------------------------------------------------------


class MultiCore(LockCore[Any], Generic[G]):
    """Several locks as one object: which ones, in which order, and the leases acquired through it."""

    __slots__ = ("cores", "order", "wrap_group")

    def __init__(
        self,
        client_state: ClientState,
        options: Spec,
        cores: Sequence[LockCore[Any]],
        order: Order,
        wrap_group: Callable[[Group], G],
    ) -> None:
        self.order = check_order(order)
        if order == "sorted":
            cores = sorted(cores, key=lambda core: core.spec.name.encode())
        self.cores = tuple(cores)
        self.wrap_group = wrap_group
        super().__init__(client_state, options, cores[0].wrap)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple([core.spec.name for core in self.cores])

    @property
    def watch_long_wait(self) -> records.WatchLongWait | None:
        """What its waiters do when they wait for long, for any of the locks that asks for that."""
        return next((core.long_wait for core in self.cores if core.long_wait is not None), None)

    def not_held_error(self) -> NotHeld:
        error = NotHeld(
            f"the locks {_shown(self.names, 'and')} are not held through this object: "
            "they were never acquired together, or they were released already"
        )
        error.name = self.names[0]
        return error


async def acquire(
    core: MultiCore[G], caller: Caller, owner: str, timeout: float | None, entered: bool = False
) -> G | None:
    """All of them for this caller, or none. Not granted: None, or LockTimeout for ``with``."""
    client_state = core.client_state
    for each in core.cores:
        each.client_state = client_state
        each.refuse_deadlock(caller, timeout)
    specs = tuple([each.spec for each in core.cores])
    taken: tuple[LeaseState, ...] | records.NotGranted = ()
    try:
        client_state.check_timers_run()
        if core.order == "sorted":
            taken = await records.acquire_in_order(
                client_state, specs, owner, timeout, None, core.watch_long_wait, caller
            )
        else:
            taken = await _acquire_as_given(core, specs, caller, owner, timeout)
        if isinstance(taken, records.NotGranted):
            if entered:
                raise _timed_out(core, taken)
            return None
        client_state.check_timers_run()
        by_name = {state.name: state for state in taken}
        for each in core.cores:
            each.remember_hold(caller, by_name[each.spec.name])
        leases = core.wrap_group(Group(client_state, tuple([by_name[name] for name in core.names])))
        if OBSERVERS:
            _show_observers(core, leases, caller, timeout != 0)
        core.enter(caller, leases, entered)
        # From here to the caller's next instruction nothing is called: an interrupt in a call would lose the
        # leases.
        return leases
    except BaseException:
        if isinstance(taken, tuple):
            await records.abandon_all(client_state, taken, wait=True)
        raise


def _show_observers(core: MultiCore[G], leases: G, caller: Caller, waits: bool) -> None:
    """With an order of its own, a caller does not wait for one of them while it holds others of them."""
    together: Collection[Collection[Any]] = [leases.values()]
    if core.order == "sorted":
        together = [(lease,) for lease in leases.values()]
    for observer in OBSERVERS:
        for each in together:
            observer(each, caller, waits)


async def _acquire_as_given(
    core: MultiCore[G], specs: tuple[Spec, ...], caller: Caller, owner: str, timeout: float | None
) -> tuple[LeaseState, ...] | records.NotGranted:
    """In an order that others may not share: try, release everything, pause, and try again.

    A caller that holds something else can still be in a deadlock, which only a long wait finds. It waits
    first for the one that was not free. So the result is in any order.
    """
    client_state, watch = core.client_state, core.watch_long_wait
    ends_at = None if timeout is None else await Now() + timeout
    tries = 0
    while True:
        left = None if ends_at is None else max(ends_at - await Now(), 0.0)
        patience = PATIENCE_SECONDS * (0.5 + await random_fraction())
        taken = await records.acquire_in_order(client_state, specs, owner, left, patience, watch, caller)
        if taken.__class__ is tuple:  # calls nothing: an interrupt in a call would lose the grants
            return taken
        pause = await random_pause(tries, BACK_OFF_SECONDS_MIN, BACK_OFF_SECONDS_MAX)
        if ends_at is not None and await Now() + pause >= ends_at:
            return taken
        await Pause(pause)
        tries += 1
        assert isinstance(taken, records.NotGranted)  # noqa: S101 - else it was returned
        if _holds_something(client_state, caller):
            specs = _with_first(specs, taken.name)


def _holds_something(client_state: ClientState, caller: Caller) -> bool:
    leases = list(client_state.leases.values())
    return any(state.caller == caller and state.ended is None for state in leases)


def _with_first(specs: tuple[Spec, ...], name: str) -> tuple[Spec, ...]:
    return tuple(sorted(specs, key=lambda spec: spec.name != name))


def _timed_out(core: MultiCore[G], taken: records.NotGranted) -> LockTimeout:
    holders = describe_holders(taken.holders, taken.now)
    detail = f": {taken.name!r} was not free" if taken.name else ""
    if holders:
        held_by = ", ".join(f"{printable(holder.owner)} (token {holder.token})" for holder in holders[:3])
        detail = f": {taken.name!r} is held by {held_by}"
    error = LockTimeout(
        f"the locks {_shown(core.names, 'and')} were not granted together in {core.spec.timeout:g} s{detail}"
    )
    error.name, error.holders = taken.name or core.names[0], holders
    return error


async def release(core: MultiCore[G], caller: Caller) -> None:
    """``release()``: the caller's own leases, else the object's current ones. LockLost if one was lost."""
    claimed: list[Entry[Any]] = []
    try:
        entry = core.claim(caller, claimed)
        core.mark_released(entry, caller)
        if core.leave(entry):
            await _release_group(entry.lease._state)
    except EngineUnavailable:
        core.restore(entry)
        raise
    except HoldfastError:
        raise
    except BaseException:
        await _finish_release(core, claimed)
        raise
    finally:
        claimed.clear()


async def _release_group(group: Group) -> None:
    if group.ended == "forked":
        return
    client_state = group.client_state
    if group.ended is not None:
        raise not_held_error(group.latest()[0])
    lost = group.lost_state(client_state.now())
    if lost is not None:
        # The engine may keep them a moment longer than their holder relies on them: a new acquire must not
        # find them there.
        await records.abandon_all(client_state, group.latest(), wait=lost.reason != "unreachable")
    else:
        await records.release_all(client_state, group.latest(), client_state.io_timeout)
        lost = _lost_in_release(group)
    for state in group.latest():
        if state.ended is None:
            state.end("released")  # it was lost before
    group.ended_early = True
    if lost is not None:
        raise lost.lost_error()


def _lost_in_release(group: Group) -> LeaseState | None:
    return next((state for state in group.latest() if state.reason is not None), None)


async def _finish_release(core: MultiCore[G], claimed: list[Entry[Any]]) -> None:
    """A release was interrupted: the keeper releases the claimed leases in the background."""
    for entry in list(claimed):
        if entry.claims and entry.claims[0] is claimed and core.leave(entry):
            group: Group = entry.lease._state
            await records.abandon_all(group.client_state, group.latest(), wait=True)


async def leave(core: MultiCore[G], caller: Caller, error: BaseException | None) -> None:
    """The end of ``with``: release this entry's leases, and report their loss."""
    claimed: list[Entry[Any]] = []
    try:
        entry = core.claim(caller, claimed, entered=True)
        group: Group = entry.lease._state
        if core.leave(entry):
            await _leave_group(core.spec, group, error)
        elif entry.released_by is not None and entry.released_by() is not entry.caller():
            raise core.not_held_error()  # another thread released them: the body went on without the locks
    except NotHeld:
        if error is None:
            raise  # else it was released inside the body, whose own error comes first
    except HoldfastError:
        raise
    except BaseException:
        await _finish_release(core, claimed)
        raise
    finally:
        claimed.clear()


async def _leave_group(spec: Spec, group: Group, error: BaseException | None) -> None:
    if group.ended is not None:
        return
    client_state = group.client_state
    lost = group.lost_state(client_state.now())
    if lost is None:
        try:
            await records.release_all(client_state, group.latest(), 0.0)
        except HoldfastError as trouble:
            log.warning("%s; the release is tried again in the background", trouble)
        lost = _lost_in_release(group)
    await records.abandon_all(client_state, group.latest())
    group.ended_early = True
    if lost is not None:
        _report_loss(spec, lost, error)


def _report_loss(spec: Spec, state: LeaseState, error: BaseException | None) -> None:
    lost = state.lost_error()
    if spec.if_lost == "note":
        log.warning("%s", lost)
    elif error is not None:
        error.add_note(f"holdfast: {lost}")
    else:
        raise lost


# --- any ----------------------------------------------------------------------------------------


class AnyCore(LockCore[L]):
    """Several locks of which one is enough."""

    __slots__ = ("cores",)

    def __init__(
        self,
        client_state: ClientState,
        options: Spec,
        cores: Sequence[LockCore[L]],
        wrap: Callable[[LeaseState], L],
    ) -> None:
        self.cores = tuple(cores)
        shown = _shown([core.spec.name for core in cores], "or")
        super().__init__(client_state, dataclasses.replace(options, name=shown), wrap)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple([core.spec.name for core in self.cores])


async def acquire_any(
    core: AnyCore[L], caller: Caller, owner: str, timeout: float | None, entered: bool = False
) -> L | None:
    """The first that is free, in the given order. Not granted: None, or LockTimeout for ``with``.

    An engine that cannot be reached for any of them is an error after ``io_timeout``, as it is for one lock.
    """
    client_state = core.client_state
    for each in core.cores:
        each.client_state = client_state
    ends_at = None if timeout is None else await Now() + timeout
    taken: LeaseState | records.NotGranted | None = None
    failing_since: float | None = None
    tries = 0
    try:
        client_state.check_timers_run()
        while True:
            troubles: list[EngineUnavailable] = []
            for each in core.cores:
                try:
                    taken = await records.acquire(client_state, each.spec, owner, 0.0)
                except EngineUnavailable as trouble:
                    if not isinstance(trouble.__cause__, TransientError):
                        raise
                    troubles.append(trouble)  # others may be elsewhere, as in a cluster
                    continue
                if isinstance(taken, records.NotGranted):
                    continue
                each.remember_hold(caller, taken)
                lease = core.wrap(taken)
                for observer in OBSERVERS:
                    observer((lease,), caller, timeout != 0 and len(core.cores) == 1)
                core.enter(caller, lease, entered)
                # As in ``acquire``, nothing is called from here to the caller's next instruction.
                return lease
            now = await Now()
            ends_now = ends_at is not None and now >= ends_at
            if len(troubles) < len(core.cores):
                failing_since = None
            elif failing_since is None:
                failing_since = now
            if failing_since is not None and (ends_now or now >= failing_since + client_state.io_timeout):
                raise troubles[0]
            if ends_now:
                break
            pause = await random_pause(tries, ASK_AGAIN_SECONDS_MIN, ASK_AGAIN_SECONDS_MAX)
            if ends_at is not None:
                pause = min(pause, ends_at - now)
            await Pause(pause)
            tries += 1
    except BaseException:
        if isinstance(taken, LeaseState):
            await records.abandon(client_state, taken, wait=True)
        raise
    if entered:
        error = LockTimeout(
            f"none of the locks {core.spec.name} was free in {timeout:g} s: others hold all of them"
        )
        error.name = core.names[0]
        raise error
    return None
