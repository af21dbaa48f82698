"""Leader election: the holder of a lock is the leader, and its fencing token is the number of its term.

The value that a leader proclaims must never be seen under another leader. A value that is short travels with
the grant, in its metadata: so it becomes visible with the leader, in one step, also on engines that store no
values. A longer value, and every later one, is stored as the value of the name. The engine keeps with it the
token of the grant that set it, and a value with another token than the holder's is not shown.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, TypeVar

from ..core import arguments
from ..core.arguments import Spec
from ..core.effects import Nonce, Pause, Unlisten
from ..core.lock_options import Duration, IfLost
from ..errors import EngineUnavailable, HoldfastError, LockLost, LockTimeout, NotHeld, Unsupported
from ..model import Guarantees, Leader
from ..protocols import locks, records
from ..protocols.client_state import ClientState, LeaseState
from ..protocols.locks import Caller, LockCore
from ..rules.requests import Snapshot
from . import names

__all__ = [
    "Backoff",
    "Election",
    "Observation",
    "announce",
    "check_resigner",
    "fails_by_loss",
    "leader",
    "leader_of",
    "proclaim",
    "renamed",
]

VALUE_IN_GRANT_MAX: Final = 1024
"""The longest value, in bytes, that travels with the grant. Metadata has room for four times as much."""

TEXT: Final = "value"
BASE64: Final = "value_base64"
FOLLOWS: Final = "value_follows"
"""The keys of the metadata: a value that is printable text, any other value, or none yet."""

RETENTION_SECONDS: Final = arguments.TTL_SECONDS_MAX
"""How long a value stays: longer than any term lasts without proclaiming again."""

PAUSE_SECONDS_MIN: Final = 0.1
PAUSE_SECONDS_MAX: Final = 5.0
"""Of the pauses after losses and failures: each is random below a bound that doubles."""

L = TypeVar("L", bound=locks.HasState)


class Election:
    """An election as one candidate takes part in it, checked."""

    __slots__ = ("name", "promised", "spec", "value")

    def __init__(self, promised: Guarantees, name: str, value: bytes, ttl: Duration, grace: Duration) -> None:
        self.name = name
        self.promised = promised
        self.value = arguments.check_value(value)
        if not promised.has_values and len(self.value) > VALUE_IN_GRANT_MAX:
            raise Unsupported(
                f"{promised.engine} carries values of at most {VALUE_IN_GRANT_MAX} bytes: they travel "
                f"with the grant; this one has {len(self.value)}: proclaim a shorter one, for example an "
                "address, or use sqlite://, redis://, etcd://, zookeeper:// or postgresql://"
            )
        record = names.election(name)
        spec = arguments.make_spec(
            name,
            "lock",
            "exclusive",
            0,
            {"ttl": ttl, "grace": grace, "metadata": metadata_of(self.value)},
            ("raise",),
        )
        self.spec = dataclasses.replace(spec, name=record)

    @property
    def record(self) -> str:
        return self.spec.name

    def spec_for(self, timeout: Duration | None, if_lost: IfLost = "raise") -> Spec:
        """The lock that one campaign takes."""
        return dataclasses.replace(self.spec, timeout=arguments.check_timeout(timeout), if_lost=if_lost)


# --- values -------------------------------------------------------------------------------------


def metadata_of(value: bytes) -> Mapping[str, str]:
    """What a grant carries of the value with which a candidate campaigns."""
    if not value:
        return {}
    if len(value) > VALUE_IN_GRANT_MAX:
        return {FOLLOWS: "yes"}
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    return {TEXT: text} if text.isprintable() and text else {BASE64: base64.b64encode(value).decode()}


def _value_in(metadata: Mapping[str, str]) -> bytes | None:
    """The value that a grant carries; None: it follows."""
    if FOLLOWS in metadata:
        return None
    if TEXT in metadata:
        return metadata[TEXT].encode()
    return base64.b64decode(metadata.get(BASE64, ""))


def leader_of(snapshot: Snapshot) -> Leader | None:
    """The leader; None: there is none, or it has not proclaimed its value yet."""
    record = snapshot.record
    if not record.holders:
        return None
    holder = record.holders[0]
    stored = record.value
    if stored is not None and stored.token == holder.token:
        value: bytes | None = stored.data
    else:
        value = _value_in(holder.metadata)
    return None if value is None else Leader(value, holder.token, holder.owner)


# --- the leader ---------------------------------------------------------------------------------


async def announce(client_state: ClientState, state: LeaseState, election: Election) -> None:
    """The first act of a leader: store a value that is too long for the grant."""
    if FOLLOWS in election.spec.metadata:
        await _store(client_state, state, election.value)


async def proclaim(client_state: ClientState, state: LeaseState, election: Election, value: bytes) -> None:
    value = arguments.check_value(value)
    if not election.promised.has_values:
        locks.check(state, client_state.now())
        if value == election.value:
            return
        raise Unsupported(
            f"{election.promised.engine} stores no values, so that of a leader is the one with which it "
            "campaigned: campaign again with another, or use sqlite://, redis://, etcd://, zookeeper:// or "
            "postgresql://"
        )
    await _store(client_state, state, value)


async def _store(client_state: ClientState, state: LeaseState, value: bytes) -> None:
    """The engine stores it only while this grant holds the name, together with the token of the grant."""
    await locks.set_value(client_state, state, value, RETENTION_SECONDS)


def check_resigner(core: LockCore[L], caller: Caller, election: Election) -> None:
    """Only the thread or task that campaigned knows that the work of the term has stopped."""
    if any(entry.caller() is caller() for entry in core.entries):
        return
    error = NotHeld(
        f"the leadership of {election.name!r} was won by another thread or task: its work may still run, so "
        "only it can resign; ask it to end its block, which resigns too"
    )
    error.name = election.name
    raise error


def renamed(error: HoldfastError, election: Election) -> None:
    """Let an error about the lock speak of the election."""
    if isinstance(error, (LockTimeout, LockLost, NotHeld)) and error.name == election.record:
        what = "election" if isinstance(error, LockTimeout) else "leadership of"
        error.args = (error.message.replace(f"lock {election.record!r}", f"{what} {election.name!r}"),)
        error.name = election.name


def fails_by_loss(error: BaseException | None, election: Election, token: int) -> bool:
    """Whether ``error`` says that this term was lost. Any other loss is the user's concern."""
    return (
        isinstance(error, LockLost)
        and error.name in (election.name, election.record)
        and error.token == token
    )


class Backoff:
    """The pauses of a candidate after its losses, and of an observer whose engine is away."""

    __slots__ = ("failures",)

    def __init__(self) -> None:
        self.failures = 0

    async def pause(self) -> None:
        """A random part of a bound that doubles with each failure in a row."""
        bound = min(PAUSE_SECONDS_MIN * 2.0 ** min(self.failures, 20), PAUSE_SECONDS_MAX)
        self.failures += 1
        chance = blake2b((await Nonce()).encode(), digest_size=4).digest()
        await Pause(bound * (0.5 + int.from_bytes(chance, "big") / 2**33))


# --- observers ----------------------------------------------------------------------------------


async def leader(client_state: ClientState, record: str) -> Leader | None:
    return leader_of(await records.inspect(client_state, record))


class Observation:
    """One observer: it reports the leader, and then every change that it sees.

    It may miss a leader that led for a moment only, but never the last one: each change wakes it to read the
    present state, and after a failure it subscribes again, which reads the present state too.
    """

    __slots__ = ("backoff", "client_state", "has_reported", "nonce", "record", "reported", "seen")

    def __init__(self, client_state: ClientState, record: str) -> None:
        self.client_state = client_state
        self.record = record
        self.nonce = ""
        """Empty: not subscribed."""
        self.seen: Snapshot | None = None
        self.has_reported = False
        self.reported: Leader | None = None
        self.backoff = Backoff()

    async def next(self) -> Leader | None:
        """The leader, when first called; then the leader after the next change."""
        while True:
            try:
                seen = await self._read()
            except EngineUnavailable:
                if not self.has_reported:
                    raise
                await self._forget()
                await self.backoff.pause()
                continue
            self.backoff.failures = 0
            now = leader_of(seen)
            if not self.has_reported or now != self.reported:
                self.has_reported, self.reported = True, now
                return now

    async def _read(self) -> Snapshot:
        """The present state, when it has just been subscribed; else the state after the next change."""
        if not self.nonce:
            self.nonce, self.seen = await records.subscribe(self.client_state, self.record)
            return self.seen
        changed = await records.next_change(self.client_state, self.record, self.nonce, None, self.seen)
        if changed is not None:
            self.seen = changed
        return self.seen  # type: ignore[return-value]  # it was set by the subscription

    async def _forget(self) -> None:
        """The subscription may be gone: do not count on it. The engine forgets it unless it is refreshed."""
        nonce, self.nonce = self.nonce, ""
        self.client_state.waiting.pop(nonce, None)
        await Unlisten(nonce)

    async def close(self) -> None:
        if self.nonce:
            nonce, self.nonce = self.nonce, ""
            try:
                await records.unsubscribe(self.client_state, self.record, nonce)
            except EngineUnavailable:
                return  # the engine forgets it
