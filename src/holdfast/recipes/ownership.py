"""Single ownership: the members of a group share its partitions, and each belongs to one live member.

* A member that takes part holds the group's record as a reader, with its name as metadata. So the engine says
  who is alive.
* A cell says which member is to own which partition. Whichever member first notices that another came or went
  replaces the assignment, by compare-and-swap. So all members act on the same assignment.
* Owning a partition is holding an ordinary lock, whose token fences its writes. A member releases what the
  assignment has taken from it once its work has stopped, and acquires what the assignment gives it. So
  however late a member learns of a change, no two own a partition at a time.

A member is one coroutine, ``take_part``, which repeats a round: read, act, wait. What the user's functions
have to know goes through ``Listener``, which never blocks it.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from hashlib import blake2b
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from ..core import arguments
from ..core.arguments import Spec
from ..core.effects import Now, Pause
from ..core.lock_options import Duration
from ..core.printable import printable
from ..errors import Conflict, EngineUnavailable, HoldfastError, InvalidArgument, NotHeld, Unsupported
from ..model import Guarantees
from ..protocols import records
from ..protocols.client_state import ClientState, LeaseState
from ..rules.requests import Snapshot
from . import assignment, cell, names
from .assignment import State

__all__ = [
    "REJOIN_SECONDS",
    "TTL_SECONDS",
    "Group",
    "Held",
    "Listener",
    "Member",
    "Options",
    "Standing",
    "check_engine",
    "check_group",
    "check_key",
    "check_partitions",
    "group_names",
    "member_of",
    "owner_of",
    "read_standing",
    "take_part",
]

log = logging.getLogger("holdfast")

TTL_SECONDS: Final = 10.0
DRAIN_SECONDS: Final = 10.0
REJOIN_SECONDS: Final = 10.0

PARTITIONS_MAX: Final = 4096
"""The assignment has to fit into one cell."""

MEMBER_BYTES_MAX: Final = 64

MEMBER: Final = "member"
REJOIN: Final = "rejoin_within"
"""The keys of the metadata of members."""

ACQUIRED_AT_ONCE: Final = 32
"""So many partitions are acquired before a member looks again whether they are still meant for it."""

POLL_SECONDS: Final = 1.0
"""A member reads the assignment this often, whether or not anything woke it: a cell wakes no one."""

RETRY_SECONDS_MIN: Final = 0.02
RETRY_SECONDS_MAX: Final = 0.25
"""How soon a partition that another member still holds is asked for again: each time later than the last."""

FAILURE_PAUSE_SECONDS: Final = 0.5


# --- arguments ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How one member takes part, checked."""

    group: str
    partitions: int
    member: str
    rejoin_within: float
    """0: the member has no name of its own, so nothing is kept for it."""
    ttl: float
    drain: float

    @classmethod
    def checked(
        cls,
        promised: Guarantees,
        group: str,
        partitions: int,
        member: str | None,
        ttl: Duration,
        drain: Duration,
        rejoin_within: Duration,
        unnamed: str,
    ) -> Options:
        """``unnamed``: the name of a member that was given none."""
        check_engine(promised)
        check_group(group)
        check_partitions(partitions)
        if member is not None:
            arguments.check_name(member, "member")
            if len(member.encode()) > MEMBER_BYTES_MAX:
                raise InvalidArgument(
                    f"the member {printable(member)!r} has more than {MEMBER_BYTES_MAX} bytes of UTF-8: give "
                    "it a shorter name, for example 'web-1'"
                )
        seconds = arguments.check_timeout(drain)
        if seconds is None:
            raise InvalidArgument("drain must be bounded: write how many seconds work may take to stop")
        kept = arguments.check_timeout(rejoin_within)
        if kept is None:
            raise InvalidArgument(
                "rejoin_within must be bounded: write for how many seconds the partitions of a member that "
                "is away are kept for it"
            )
        return cls(
            group,
            partitions,
            unnamed if member is None else member,
            0.0 if member is None else kept,
            arguments.check_ttl(ttl),
            seconds,
        )

    def presence(self) -> Spec:
        metadata = {MEMBER: self.member, REJOIN: f"{self.rejoin_within:g}"}
        return self._spec(names.group(self.group), "read", metadata)

    def lock(self, partition: int) -> Spec:
        return self._spec(names.partition(self.group, partition), "exclusive", {MEMBER: self.member})

    def _spec(self, name: str, mode: Any, metadata: Mapping[str, str]) -> Spec:
        return Spec(
            name=name,
            kind="rwlock" if mode == "read" else "lock",
            mode=mode,
            ttl=self.ttl,
            timeout=0.0,
            fair=True,
            renew=True,
            max_hold=None,
            grace=0.0,
            if_lost="note",
            metadata=metadata,
        )


def check_engine(promised: Guarantees) -> None:
    """Refuse an engine that cannot carry groups, before any I/O."""
    if not promised.has_cells or "rwlock" not in promised.primitives:
        raise Unsupported(
            f"{promised.engine} cannot share out partitions: its nodes agree on locks alone, and store no "
            "assignment. Use sqlite://, redis://, etcd://, zookeeper:// or postgresql://"
        )


def check_group(group: str) -> str:
    return arguments.check_name(group, "group")


def check_partitions(partitions: int) -> int:
    if isinstance(partitions, bool) or not isinstance(partitions, int):
        raise InvalidArgument(f"partitions is a whole number; it is {partitions!r}: write for example 64")
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidArgument(
            f"a group has between 1 and {PARTITIONS_MAX} partitions; this one {partitions}: a partition has "
            "many keys, so several for each member are enough"
        )
    return partitions


def check_key(key: str | bytes) -> str | bytes:
    if not isinstance(key, str | bytes | bytearray):
        raise InvalidArgument(f"a key is text or bytes; it is {type(key).__name__}: write str(key)")
    return key


# --- one member ---------------------------------------------------------------------------------


class Listener(Protocol):
    """Where a member reports what happens to its partitions. No method blocks, nor raises."""

    def granted(self, held: Held) -> Any:
        """The lease that users get of this grant; from here on its loss is reported as well."""

    def assigned(self, held: Held) -> None: ...

    def revoked(self, held: Held) -> None:
        """The work has to stop."""

    def overdue(self, held: Held) -> None:
        """The work has not stopped in time: the partition is released now."""


class Held:
    """A partition that this member holds."""

    __slots__ = (
        "calls",
        "informed",
        "is_assignment_known",
        "is_loss_known",
        "is_loss_reported",
        "is_overdue",
        "lease",
        "overdue_at",
        "partition",
        "state",
    )

    def __init__(self, partition: int, state: LeaseState) -> None:
        self.partition = partition
        self.state = state
        self.lease: Any = None
        self.overdue_at: float | None = None
        """It was revoked, and is released at this moment at the latest. None: it was not revoked."""
        self.is_overdue = False
        """It was released at that moment, before its work had stopped."""
        self.calls = 0
        """How many of the user's functions have been called, or are to be, and have not returned."""
        self.informed: list[Any] = []
        """The user's functions that know, or are to know, that it was assigned."""
        self.is_assignment_known = False
        """A function that has to know of its assignment was called."""
        self.is_loss_known = False
        """The functions that have to know of its loss are called, or were."""
        self.is_loss_reported = False
        """The user's functions that had to know of its loss have returned."""

    @property
    def has_stopped(self) -> bool:
        """Whether the work on a partition that was revoked, or lost, has stopped."""
        is_lost = self.state.reason is not None and self.state.ended is None
        return not self.calls and (self.is_loss_reported or not is_lost)


class Member:
    """What a member knows. Users read ``held`` from other threads, so each change of it is one step."""

    __slots__ = (
        "absent_since",
        "cell",
        "client_state",
        "has_left",
        "held",
        "is_active",
        "leaving",
        "listener",
        "nonce",
        "options",
        "owner",
        "presence",
        "retries",
        "returning",
        "seen",
        "state",
        "stopping",
        "token",
        "tried",
        "wake",
    )

    def __init__(
        self, client_state: ClientState, options: Options, owner: str, listener: Listener, wake: Any
    ) -> None:
        self.client_state = client_state
        self.options = options
        self.owner = owner
        self.listener = listener
        self.wake = wake
        """Wakes the subscription of a nonce, from any thread."""
        self.cell = _cell(client_state, options.group)
        self.state = assignment.decode(None, options.partitions)
        self.presence: LeaseState | None = None
        self.held: dict[int, Held] = {}
        self.stopping: list[Held] = []
        """Held no longer, though their work has not stopped: lost, or overdue. They are not acquired again
        until it has; and until the overdue ones have stopped, this member takes no part."""
        self.nonce = ""
        """Of the subscription to the group's record; empty: there is none."""
        self.seen: Snapshot | None = None
        self.absent_since: dict[str, float] = {}
        self.leaving = False
        self.returning = False
        """It left, but its partitions are kept for it."""
        self.has_left = False
        self.is_active = False
        """It takes part, as far as it knows."""
        self.retries = 0
        self.tried = -1
        """The partition that was tried last."""
        self.token = 0
        """Of its presence, now or before."""

    @property
    def takes_part(self) -> bool:
        return not self.leaving and not any(held.is_overdue for held in self.stopping)

    def wake_up(self) -> None:
        """Something happened in this process: the member has to look."""
        if self.nonce:
            self.wake(self.nonce)

    def leave(self, returning: bool) -> None:
        self.returning = returning
        self.leaving = True
        self.wake_up()

    def is_present(self) -> bool:
        """Whether it takes part, by the clock: a process that stood still knows it at once."""
        presence = self.presence
        return self.is_active and presence is not None and _is_held(presence, self.client_state.now())

    def owned(self) -> frozenset[int]:
        return frozenset(partition for partition in list(self.held) if self.owns(partition))

    def owns(self, partition: int) -> bool:
        """Whether new work on it may begin."""
        held = self.held.get(partition)
        return held is not None and held.overdue_at is None and _is_held(held.state, self.client_state.now())

    def partition_of(self, key: str | bytes) -> int:
        return assignment.partition_of(check_key(key), self.options.partitions)

    def lease_of(self, partition: int) -> Any:
        """The lease of a partition that is owned, or whose work is stopping."""
        if isinstance(partition, bool) or not isinstance(partition, int):
            raise InvalidArgument(
                f"a partition is a whole number; it is {partition!r}: partition_of(key) is that of a key"
            )
        held = self.held.get(partition)
        if held is None:
            error = NotHeld(
                f"the partition {partition} of {self.options.group!r} is not owned by this member: it "
                "belongs to another one, or to none at the moment"
            )
            error.name = names.partition(self.options.group, partition)
            raise error
        return held.lease


def _cell(client_state: ClientState, group: str) -> cell.Cell:
    return cell.Cell(client_state, group, names.group_state(group))


def _is_held(state: LeaseState, now: float) -> bool:
    return state.ended is None and state.loss(now) is None


# --- the rounds of a member -------------------------------------------------------------------------


async def join(member: Member) -> None:
    """Become a member, which owns nothing yet. Fails where the engine does."""
    try:
        state = _decoded(member, (await cell.read(member.cell)).data)
        _check_partitions(member, state, await records.inspect(member.client_state, _record(member)))
        await _be_present(member)
        await _update(member, *await _read(member))
    except BaseException:
        await _abandon_all(member)
        raise


async def take_part(member: Member) -> None:
    """Until it has left, or the client is closed."""
    try:
        while not member.has_left and not member.client_state.closed:
            await _round_or_pause(member)
    except InvalidArgument as error:  # the number of partitions was changed while this member was away
        if not member.client_state.closed:
            log.error("holdfast: the member %r left: %s", member.options.member, error)
            await _abandon_all(member)
    finally:
        member.is_active = False
        member.has_left = True
        if member.client_state.closed:
            for held in list(member.held.values()):
                member.listener.overdue(held)  # closing the client released it
            member.held.clear()
        if member.nonce:
            nonce, member.nonce = member.nonce, ""
            await records.forget_subscription(member.client_state, nonce)


async def _round_or_pause(member: Member) -> None:
    try:
        seconds = await _round(member)
        if not member.has_left and member.seen is not None and seconds > 0:
            await records.wait_for_wakeup(member.client_state, member.nonce, seconds, member.seen)
    except EngineUnavailable as error:
        if member.client_state.closed:
            return
        log.warning("holdfast: the group %r: %s; trying again", member.options.group, error)
        if member.nonce:
            nonce, member.nonce = member.nonce, ""
            await records.forget_subscription(member.client_state, nonce)
        if member.leaving and not member.held and member.presence is None:
            member.has_left = True  # what remains to be said, the others find out
            return
        await Pause(FAILURE_PAUSE_SECONDS * _spread(member))
    except InvalidArgument:
        raise
    except Exception:
        if member.client_state.closed:
            return
        log.exception("holdfast: a round of the group %r failed; trying again", member.options.group)
        await Pause(FAILURE_PAUSE_SECONDS)


async def _round(member: Member) -> float:
    """Read, and act. Returns for how many seconds there is nothing more to do."""
    _forget_lost(member)
    is_reachable = True
    if not member.takes_part:
        _revoke_all_but(member, frozenset())  # work stops also where the engine does not answer
        is_reachable = await _withdraw(member)
    is_reachable = await _release_stopped(member, is_reachable)
    if member.leaving and not is_reachable:
        member.has_left = not member.held  # what remains to be said, the others find out
        if member.held:
            await Pause(RETRY_SECONDS_MAX)
        return 0.0
    if member.takes_part:
        await _be_present(member)
    contents, state = await _read(member)
    await _update(member, contents, state)
    mine = _mine(member)
    _revoke_all_but(member, mine)
    await _release_stopped(member)
    has_more = await _acquire(member, mine)
    if member.leaving and not member.held and member.presence is None:
        member.has_left = True
    return 0.0 if has_more else _seconds_to_next_duty(member, await Now(), mine)


def _forget_lost(member: Member) -> None:
    """Remove lost leases. Each lease has reported its loss itself."""
    now = member.client_state.now()
    for held in list(member.held.values()):
        if not _is_held(held.state, now):
            del member.held[held.partition]
            if held.state.ended is None:
                member.stopping.append(held)
    member.stopping = [held for held in member.stopping if not held.has_stopped]


async def _release_stopped(member: Member, is_reachable: bool = True) -> bool:
    """Release what was revoked: when its work has stopped, and when its time is over. Returns whether the
    engine answered."""
    now = await Now()
    for held in list(member.held.values()):
        if held.overdue_at is None or (not held.has_stopped and now < held.overdue_at):
            continue
        if not held.has_stopped:
            held.is_overdue = True
            member.stopping.append(held)
            member.listener.overdue(held)
            log.warning(
                "holdfast: the member %r has not stopped its work on the partition %d of %r in time: it "
                "takes no part until it has",
                member.options.member,
                held.partition,
                member.options.group,
            )
        is_reachable = await _release(member.client_state, held.state, is_reachable)
        member.held.pop(held.partition, None)
    return is_reachable


async def _release(client_state: ClientState, state: LeaseState, is_reachable: bool = True) -> bool:
    """Release it; where the engine does not answer, in the background. Returns whether it answered."""
    if is_reachable:
        try:
            await records.release(client_state, state, 0.0)
            return True
        except EngineUnavailable:
            is_reachable = False
        except HoldfastError:
            pass  # it was lost
    await records.abandon(client_state, state)
    return is_reachable


async def _be_present(member: Member) -> None:
    """Hold the group's record while this member takes part."""
    client_state, presence = member.client_state, member.presence
    if presence is not None and not _is_held(presence, client_state.now()):
        member.presence = presence = None
    if presence is None and not await _is_replaced(member):
        client_state.check_timers_run()
        presence = await _try(member, member.options.presence())
        if presence is not None:
            presence.end_callbacks.append(member.wake_up)
            member.presence, member.token = presence, presence.token
    member.is_active = member.presence is not None


async def _withdraw(member: Member) -> bool:
    """Release the group's record. Returns whether the engine answered."""
    presence, member.presence = member.presence, None
    member.is_active = False
    if presence is None or not _is_held(presence, member.client_state.now()):
        return True
    return await _release(member.client_state, presence)


async def _is_replaced(member: Member) -> bool:
    """Whether a member that lost its presence finds another process in its place."""
    if member.token:
        _check_replaced(member, _instances(await records.inspect(member.client_state, _record(member))))
    return member.leaving


def _check_replaced(member: Member, instances: Mapping[str, Instance]) -> None:
    """Of two processes with one name, the newer one has it."""
    newest = instances.get(member.options.member)
    if newest is not None and member.token and newest.token > member.token and not member.leaving:
        log.warning(
            "holdfast: the member %r of %r leaves: a newer process, %s, has joined with its name",
            member.options.member,
            member.options.group,
            printable(newest.owner),
        )
        member.leaving = member.returning = True


async def _try(member: Member, spec: Spec) -> LeaseState | None:
    grant = await records.acquire(member.client_state, spec, member.owner, 0.0)
    return None if isinstance(grant, records.NotGranted) else grant


async def _read(member: Member) -> tuple[cell.Contents, State]:
    """Read the assignment, and then which members are present.

    In this order, because a member is present before it is in the assignment: so a member that is in it, and
    is not present, has left.
    """
    contents = await cell.read(member.cell)
    if member.nonce:
        member.seen = await records.look_again(member.client_state, _record(member), member.nonce)
    else:
        member.nonce, member.seen = await records.subscribe(member.client_state, _record(member))
    state = _decoded(member, contents.data)
    if len(state.owners) != member.options.partitions:
        _check_partitions(member, state, member.seen)
        state = State(state.generation, {}, (None,) * member.options.partitions)
    return contents, state


async def _update(member: Member, contents: cell.Contents, state: State) -> None:
    """Replace the assignment where members have come or gone."""
    assert member.seen is not None  # noqa: S101 - as read just now
    instances = _instances(member.seen)
    _check_replaced(member, instances)
    present = {name: instance.rejoin_within for name, instance in instances.items()}
    given_up = _given_up(member, state, present)
    after = assignment.next_state(state, present, given_up)
    if after is not state:
        try:
            await cell.set_if(member.cell, contents.version, assignment.encode(after))
        except Conflict:
            member.wake_up()  # another member was faster: look at once what it stored
            after = state
    member.state = after


def _given_up(member: Member, state: State, present: Mapping[str, float]) -> set[str]:
    """The members that have been away for longer than their partitions are kept, and this one if it left."""
    now = member.client_state.now()
    away = {name: seconds for name, seconds in state.members.items() if name not in present}
    for name in list(member.absent_since):
        if name not in away:
            del member.absent_since[name]
    gone = {
        name for name, seconds in away.items() if now >= member.absent_since.setdefault(name, now) + seconds
    }
    myself = member.options.member
    if not member.takes_part and not member.returning and myself not in present:
        gone.add(myself)
    return gone


def _mine(member: Member) -> frozenset[int]:
    """The partitions that this member is to own."""
    if member.presence is None or not member.takes_part:
        return frozenset()
    return assignment.partitions_of(member.state, member.options.member)


def _revoke_all_but(member: Member, mine: frozenset[int]) -> None:
    now = member.client_state.now()
    for held in list(member.held.values()):
        if held.partition not in mine and held.overdue_at is None:
            held.overdue_at = now + member.options.drain
            member.listener.revoked(held)


async def _acquire(member: Member, mine: frozenset[int]) -> bool:
    """Acquire what it is to own and is free. Returns whether to go on at once."""
    missing = mine - member.held.keys() - {held.partition for held in member.stopping}
    granted = refused = 0
    for partition in sorted(missing, key=lambda each: (each <= member.tried, each)):
        if granted >= ACQUIRED_AT_ONCE or refused >= ACQUIRED_AT_ONCE:
            break
        member.tried = partition
        if await _take(member, partition):
            granted += 1
        else:
            refused += 1
    if not missing or granted:
        member.retries = 0
    return granted > 0 and len(missing) > granted


async def _take(member: Member, partition: int) -> bool:
    """Acquire one partition. False: another member holds it."""
    member.client_state.check_timers_run()
    state = await _try(member, member.options.lock(partition))
    if state is None:
        return False
    held = Held(partition, state)
    held.lease = member.listener.granted(held)
    member.held[partition] = held
    state.end_callbacks.append(member.wake_up)
    member.listener.assigned(held)
    return True


def _seconds_to_next_duty(member: Member, now: float, mine: frozenset[int]) -> float:
    due = now + POLL_SECONDS * _spread(member)
    if mine - member.held.keys():
        due = min(due, now + min(RETRY_SECONDS_MIN * 2.0 ** min(member.retries, 20), RETRY_SECONDS_MAX))
        member.retries += 1
    for held in member.held.values():
        if held.overdue_at is not None:
            due = min(due, now if held.has_stopped else held.overdue_at)
    for name, since in member.absent_since.items():
        due = min(due, since + member.state.members.get(name, inf))
    return max(due - now, 0.0)


def _spread(member: Member) -> float:
    """Between 0.8 and 1.2, another number for each member: so that not all of them ask at once."""
    return 0.8 + 0.4 * blake2b(member.owner.encode(), digest_size=1).digest()[0] / 255


async def _abandon_all(member: Member) -> None:
    """Release everything in the background. The work on what was held has to stop at once."""
    presence, member.presence = member.presence, None
    held = list(member.held.values())
    member.held.clear()
    for each in held:
        member.listener.overdue(each)
    for state in (presence, *[each.state for each in held]):
        if state is not None and state.ended is None:
            await records.abandon(member.client_state, state)


# --- what is stored -----------------------------------------------------------------------------


def _record(member: Member) -> str:
    return names.group(member.options.group)


def _decoded(member: Member, data: bytes | None) -> State:
    return _state_in(member.options.group, data, member.options.partitions)


def _state_in(group: str, data: bytes | None, partitions: int = 0) -> State:
    try:
        return assignment.decode(data, partitions)
    except ValueError as error:
        raise EngineUnavailable(
            f"what is stored as the assignment of the group {group!r} was not written by this version "
            f"({error}): is it another version of Holdfast, or another program?"
        ) from error


def _check_partitions(member: Member, state: State, seen: Snapshot) -> None:
    """The number of partitions changes only while the group has no other member."""
    partitions = member.options.partitions
    others = _instances(seen).keys() - {member.options.member}
    if len(state.owners) != partitions and state.generation and others:
        raise InvalidArgument(
            f"the group {member.options.group!r} has {len(state.owners)} partitions, not {partitions}: give "
            "every member the same number; it can be changed while no member takes part"
        )


class Instance(NamedTuple):
    """The newest process with the name of a member."""

    token: int
    owner: str
    client: str
    since: float
    rejoin_within: float


def _instances(seen: Snapshot) -> dict[str, Instance]:
    found: dict[str, Instance] = {}
    for holder in seen.record.holders:
        name = holder.metadata.get(MEMBER)
        if name and (name not in found or found[name].token < holder.token):
            found[name] = Instance(
                holder.token, holder.owner, holder.client, holder.since, _seconds(holder.metadata.get(REJOIN))
            )
    return found


def _seconds(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


# --- for clients that are not members ------------------------------------------------------------


class Group(NamedTuple):
    """A group as it is now."""

    name: str
    now: float
    state: State
    instances: Mapping[str, Instance]
    owners: Mapping[int, Standing]


class Standing(NamedTuple):
    """The holder of a partition."""

    member: str
    token: int


async def owner_of(client_state: ClientState, group: str, partition: int) -> Standing | None:
    """The member that holds a partition now."""
    return _standing(await records.inspect(client_state, names.partition(group, partition)))


def member_of(holder: Any) -> str:
    return str(holder.metadata.get(MEMBER, ""))


def _standing(seen: Snapshot) -> Standing | None:
    holders = seen.record.holders
    return Standing(member_of(holders[0]), holders[0].token) if holders else None


async def read_standing(client_state: ClientState, group: str) -> Group | None:
    """A group with its members and the owners of its partitions; None: there never was one of that name."""
    contents = await cell.read(_cell(client_state, group))
    if contents.data is None:
        return None
    seen = await records.inspect(client_state, names.group(group))
    owners: dict[int, Standing] = {}
    prefix = names.partitions(group)
    for name, snapshot in await records.list_names(client_state, prefix):
        number, standing = name[len(prefix) :], _standing(snapshot)
        if standing is not None and number.isascii() and number.isdigit():
            owners[int(number)] = standing
    return Group(group, seen.now, _state_in(group, contents.data), _instances(seen), owners)


async def group_names(client_state: ClientState) -> list[str]:
    """The groups that have members, or had some lately."""
    found = await records.list_names(client_state, names.GROUPS)
    return [name[len(names.GROUPS) :] for name, _ in found]
