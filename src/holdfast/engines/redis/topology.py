"""Which server has which records: the one server, the master that Sentinels name, or the masters of a
Cluster."""

from __future__ import annotations

import secrets
from binascii import crc_hqx
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol

from hiredis import ReplyError

from ...core.effects import NotApplied, OutcomeUnknown, TransientError
from ...errors import EngineUnavailable
from ..resp.codec import pack_command
from ..resp.config import Address
from ..resp.handshake import NotMasterError, eviction_policy
from .config import RedisConfig
from .errors import NOT_MASTER, error_for
from .keys import SLOTS, Keyspace, slot_of

__all__ = [
    "INFO_MEMORY",
    "ServerConnections",
    "SlotMigratingError",
    "Topology",
    "find_master",
    "masters_of",
    "read_slots",
]

CLUSTER_SLOTS: Final = pack_command(b"CLUSTER", b"SLOTS")
INFO_MEMORY: Final = pack_command(b"INFO", b"memory")


class SlotMigratingError(NotApplied):
    """The slot is moving to another server, and some of the keys are there already."""


class ServerConnections(Protocol):
    """Connections to servers, opened as they are needed."""

    async def exchange(self, address: Address, payload: bytes, count: int) -> list[Any]:
        """``Connection.exchange`` on one of the connections to this server."""
        ...

    async def exchange_blocking(self, address: Address, payload: bytes, count: int) -> list[Any]:
        """The same for a request that can take long: no other request waits behind it."""
        ...

    async def ask_sentinel(self, address: Address, payload: bytes) -> Any:
        """Send one query to a Sentinel, on a connection of its own."""
        ...

    def drop(self, address: Address) -> None:
        """Close the connections to this server, subscribed ones too: its role changed."""
        ...


async def find_master(
    service: str,
    sentinels: list[Address],
    connections: ServerConnections,
    use_master: Callable[[Address], Awaitable[None]],
) -> None:
    """Ask one Sentinel after the other until one names a usable master. The next call asks that Sentinel
    first.

    A Sentinel that is cut off from its peers goes on naming the master that they have replaced.
    """
    unusable: dict[Address, Exception] = {}
    failure: Exception | None = None
    answered = False
    for sentinel in list(sentinels):
        try:
            master = await _master_named_by(sentinel, service, connections)
        except (TransientError, EngineUnavailable) as error:
            failure = error
            continue
        answered = True
        if master is None or master in unusable:
            continue
        try:
            await use_master(master)
        except (TransientError, EngineUnavailable) as error:
            unusable[master] = error
            continue
        sentinels.sort(key=lambda each: each != sentinel)
        return
    if unusable:  # transient errors first: the real master may have a problem that passes
        raise min(unusable.values(), key=lambda error: not isinstance(error, TransientError))
    if answered and failure is None:
        raise EngineUnavailable(f"the Sentinels know no master called {service!r}")
    raise _no_answer("Sentinel", sentinels, failure)


async def _master_named_by(sentinel: Address, service: str, connections: ServerConnections) -> Address | None:
    question = pack_command(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", service.encode())
    reply = await connections.ask_sentinel(sentinel, question)
    if isinstance(reply, ReplyError):
        raise error_for(str(reply), sentinel)
    return Address(reply[0].decode(), int(reply[1])) if isinstance(reply, list) and len(reply) == 2 else None


def masters_of(slots: Iterable[Address | None]) -> list[Address]:
    """All masters, each once."""
    return list(dict.fromkeys(master for master in slots if master is not None))


async def read_slots(candidates: Iterable[Address], connections: ServerConnections) -> list[Address | None]:
    """Ask one member of the Cluster after the other for all slots and their masters."""
    failure: Exception | None = None
    asked = list(dict.fromkeys(candidates))
    for member in asked:
        try:
            reply = (await connections.exchange(member, CLUSTER_SLOTS, 1))[0]
        except (TransientError, EngineUnavailable) as error:
            failure = error
            continue
        if isinstance(reply, ReplyError):
            failure = error_for(str(reply), member)
            continue
        return _masters(reply, member)
    raise _no_answer("member of the cluster", asked, failure)


def _masters(reply: list[list[Any]], member: Address) -> list[Address | None]:
    masters: list[Address | None] = [None] * SLOTS
    for first, last, (host, port, *_), *_ in reply:
        # A server that does not know its own name means the name by which it was asked.
        name = (host or b"").decode()
        address = Address(member.host if name in ("", "?") else name, port)
        masters[first : last + 1] = [address] * (last + 1 - first)
    return masters


def _no_answer(kind: str, asked: Iterable[Address], failure: Exception | None) -> Exception:
    """A permanent error is raised as it is. After any other error nothing was done."""
    if isinstance(failure, EngineUnavailable):
        return failure
    cause = f": {failure}" if isinstance(failure, NotApplied | OutcomeUnknown) else ""
    return NotApplied(f"no {kind} answers ({', '.join(map(str, asked))}){cause}")


class Topology:
    """Which server has the records of each name, as far as this client knows. No I/O but on discovery."""

    def __init__(
        self,
        config: RedisConfig,
        space: Keyspace,
        connections: ServerConnections,
        report_policy: Callable[[str | None], None],
    ) -> None:
        self._config = config
        self._space = space
        self._connections = connections
        self._report_policy = report_policy
        self._id = config.source
        self._sentinels = list(config.addresses)
        self._was_discovered = False
        self.suspects: set[Address] = set()
        """Servers where a request failed and no request was answered since. Other servers are asked first."""
        self.policies: dict[Address, str | None] = {}
        """The eviction policy of each master of a Cluster that was probed: see ``eviction_policy``."""
        self.is_current = False
        """Discovery succeeded, and nothing since then has shown a change."""
        self.home: Address | None = None
        """The one server that has everything; None in a Cluster."""
        self.masters: list[Address | None] = []
        """The server of each slot of a Cluster; None: not known."""

    @property
    def source(self) -> str:
        """The source of the tokens: deployment, database and namespace."""
        namespace = self._space.prefix.decode().split(":")[1]
        return f"redis:{self._id or ''}/{self._config.database}/{namespace}"

    def slot_of(self, name: str) -> int:
        return slot_of(self._space, name) if self._space.sharded else 0

    def server_of(self, slot: int) -> Address:
        address = self.home if self.home is not None else self.masters[slot]
        if address is None:
            raise NotApplied(f"no server of the cluster has slot {slot}: is one down?")
        return address

    # --- discovery ------------------------------------------------------------------------------

    async def discover(self) -> None:
        """Find the servers: before the first request, and after anything that shows a change."""
        if self._config.deployment == "cluster":
            known = [*masters_of(self.masters), *self._config.addresses]
            known.sort(key=lambda address: address in self.suspects)
            self.masters = await read_slots(known, self._connections)
            await self._probe_cluster()
        elif self._config.deployment == "sentinel":
            await find_master(self._config.service, self._sentinels, self._connections, self._move_to)
        else:
            self.home = self._config.addresses[0]
            await self._probe_server(self.home)
        self.is_current = self._was_discovered = True

    async def _move_to(self, master: Address) -> None:
        if self.home not in (None, master):
            self._connections.drop(self.home)
        self.home = master
        await self._probe_server(master)

    async def _probe_cluster(self) -> None:
        """Probe the master that has the id. Once the id is known that master may fail: the others have
        locks."""
        for address in set(self.policies) - set(self.masters):
            self.policies.pop(address, None)
        slot = crc_hqx(self._source_key, 0) % SLOTS
        if not self._was_discovered:
            await self._probe_server(self.server_of(slot))
            return
        with_id = self.masters[slot]
        if with_id is not None and with_id not in self.suspects:
            try:
                await self._probe_server(with_id)
            except TransientError:
                self.suspects.add(with_id)  # probed again once it has answered a request

    @property
    def _source_key(self) -> bytes:
        return self._space.prefix + b"source"

    async def _probe_server(self, address: Address) -> None:
        """Read the eviction policy and the id of the database.

        The first client of a database makes the id. A database that lost it with all its data gets it back
        from a client that still knows it, if that client comes before a new one.
        """
        key = self._source_key
        requests = [
            INFO_MEMORY,
            pack_command(b"SET", key, (self._id or secrets.token_hex(8)).encode(), b"NX"),
            pack_command(b"GET", key),
        ]
        try:
            replies = await self._connections.exchange(address, b"".join(requests), len(requests))
        except NotMasterError as error:
            if self._config.deployment == "single" and not self._was_discovered:
                raise EngineUnavailable(str(error)) from None
            raise
        except OutcomeUnknown as error:
            raise NotApplied(str(error)) from None  # whatever happened to the id, no request was sent
        self.note_policy(address, replies[0])
        if self._config.source is not None:
            return
        if isinstance(replies[2], bytes):
            self._id = replies[2].decode("utf-8", "replace")
        elif self._id is None:
            raise self.error_for(str(next(e for e in replies if isinstance(e, ReplyError))), address)

    # --- what requests show ---------------------------------------------------------------------

    def note_policy(self, address: Address, info: Any) -> None:
        """Report a policy from the reply to ``INFO memory``. In a Cluster one master that evicts is
        enough."""
        policy = eviction_policy(info)
        if not self.masters:
            self._report_policy(policy)
            return
        self.policies[address] = f"{policy} at {address}" if policy else policy
        known = list(self.policies.values())
        self._report_policy(next(filter(None, known), None if None in known else ""))

    def invalidate(self, address: Address | None) -> None:
        """A request failed at this server (None: at any): discover again before the next request."""
        if address is not None and self.home not in (None, address):
            return  # it was replaced, by a discovery since then
        self.is_current = False
        if address is not None:
            self.suspects.add(address)
            self.policies.pop(address, None)  # it may restart with another policy

    def answered(self, address: Address) -> None:
        """A suspect answered. A member of a Cluster is probed again: it may have lost its data and the id."""
        self.suspects.discard(address)
        self.is_current = self.is_current and not self.masters

    def follow_redirection(self, asked: Address, is_permanent: bool, slot: int, to: Address) -> Address:
        to = to if to.host else Address(asked.host, to.port)
        if is_permanent:
            self.masters[slot] = to
            self.is_current = False  # where one slot moved, others did
        return to

    def error_for(self, message: str, address: Address) -> Exception:
        """The exception for an error reply of this server."""
        if message.startswith(NOT_MASTER):
            self._connections.drop(address)
            self.invalidate(address)
        error = error_for(message, address)
        return SlotMigratingError(str(error)) if message.startswith("TRYAGAIN") else error
