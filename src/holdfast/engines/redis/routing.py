"""The way of a request to the server that keeps its record, and what else is asked of servers. No I/O here.

What can go wrong on the way without anything having happened is dealt with: a script that the server does not
know (yet, or since it was restarted), a slot that moved. Everything else goes back to the protocol.
"""

from __future__ import annotations

import contextlib
import secrets
from binascii import crc_hqx
from collections.abc import Callable, Iterator
from typing import Any, Final

from hiredis import ReplyError

from ...core.effects import NotApplied, OutcomeUnknown, TransientError
from ...engine_api import AdapterContext, Steps
from ...errors import EngineUnavailable
from ...rules.record import is_idle
from ...rules.requests import (
    Acquire,
    Broken,
    Done,
    Gone,
    Granted,
    Inspect,
    Release,
    Renew,
    Reply,
    Request,
    Snapshot,
)
from ..resp.codec import pack_command
from ..resp.config import Address
from ..resp.handshake import NotMasterError, eviction_policy
from ..resp.scripts import Script
from .codec import (
    BATCH_KEYS_MAX,
    Batch,
    Command,
    decode,
    decode_all,
    encode,
    encode_in_order,
    encode_packed,
    encode_renew_batch,
    pack,
)
from .config import RedisConfig
from .errors import NOT_MASTER, error_for, parse_redirection
from .keys import Keyspace, name_of, scan_pattern, slot_of
from .topology import SLOTS, ServerConnections, find_master, masters_of, read_slots

__all__ = ["Router"]

REDIRECTIONS_MAX: Final = 8
"""A request sent to and fro more often than this is refused: the Cluster is not at rest."""

SCAN_COUNT: Final = 1000
INSPECT_BATCH: Final = 100

ASKING: Final = pack_command(b"ASKING")
INFO_MEMORY: Final = pack_command(b"INFO", b"memory")


class _SlotMigratingError(NotApplied):
    """The slot is on its way to another server, and some of the keys are there already."""


class Router:
    """Where the records of one space are, for one client."""

    def __init__(
        self,
        settings: RedisConfig,
        space: Keyspace,
        nodes: ServerConnections,
        hooks: AdapterContext,
        evicts: Callable[[str | None], None],
    ) -> None:
        self._settings = settings
        self._space = space
        self._nodes = nodes
        self._report_policy = evicts
        self._wait_command = _wait_for_replicas(settings, hooks.io_timeout)
        self._id = settings.source
        self._sentinels = list(settings.addresses)
        self._suspects: set[Address] = set()
        """Where something failed, and nothing was answered since: others are asked first."""
        self._policies: dict[Address, str | None] = {}
        """By which policy each master of a Cluster throws keys away: see ``evicting``."""
        self._was_discovered = False
        self.is_current = False
        """Who serves what was found out, and nothing has shown since that it changed."""
        self.home: Address | None = None
        """The one server that has everything; None in a Cluster."""
        self.masters: list[Address | None] = []
        """The server of each slot of a Cluster, as far as it is known."""

    @property
    def source(self) -> str:
        """Whose numbers the tokens are."""
        namespace = self._space.prefix.decode().split(":")[1]
        return f"redis:{self._id or ''}/{self._settings.database}/{namespace}"

    # --- who serves what ------------------------------------------------------------------------

    async def discover(self) -> None:
        """Find out who serves what: before the first request, and when something shows that it changed."""
        if self._settings.deployment == "cluster":
            known = [*masters_of(self.masters), *self._settings.addresses]
            known.sort(key=lambda address: address in self._suspects)
            self.masters = await read_slots(known, self._nodes)
            await self._probe_cluster()
        elif self._settings.deployment == "sentinel":
            await find_master(self._settings.service, self._sentinels, self._nodes, self._move_to)
        else:
            self.home = self._settings.addresses[0]
            await self._probe_server(self.home)
        self.is_current = self._was_discovered = True

    async def _move_to(self, master: Address) -> None:
        if self.home not in (None, master):
            self._nodes.drop(self.home)
        self.home = master
        await self._probe_server(master)

    async def _probe_cluster(self) -> None:
        """Once the id is known, the one master that has it may fail: there are locks at the others."""
        for address in set(self._policies) - set(self.masters):
            self._policies.pop(address, None)
        slot = crc_hqx(self._source_key, 0) % SLOTS
        if not self._was_discovered:
            await self._probe_server(self.server_of(slot))
            return
        with_id = self.masters[slot]
        if with_id is not None and with_id not in self._suspects:
            try:
                await self._probe_server(with_id)
            except TransientError:
                self._suspects.add(with_id)  # asked again when it has answered something

    @property
    def _source_key(self) -> bytes:
        return self._space.prefix + b"source"

    async def _probe_server(self, address: Address) -> None:
        """Does the deployment keep what it is given, and whose are its numbers?

        The database has an id, made by the first who comes. One that lost it with all its data gets it back
        from whoever still knows it, if that one comes before somebody who does not.
        """
        key = self._source_key
        asked = [
            INFO_MEMORY,
            pack_command(b"SET", key, (self._id or secrets.token_hex(8)).encode(), b"NX"),
            pack_command(b"GET", key),
        ]
        try:
            told = await self._nodes.exchange(address, b"".join(asked), len(asked))
        except NotMasterError as error:
            if self._settings.deployment == "single" and not self._was_discovered:
                raise EngineUnavailable(str(error)) from None
            raise
        except OutcomeUnknown as error:
            raise NotApplied(str(error)) from None  # whatever happened to the id, our request was not sent
        self._note_policy(address, told[0])
        if self._settings.source is not None:
            return
        if isinstance(told[2], bytes):
            self._id = told[2].decode("utf-8", "replace")
        elif self._id is None:
            raise self._error_for(str(next(each for each in told if isinstance(each, ReplyError))), address)

    def _note_policy(self, address: Address, told: Any) -> None:
        """What it answered to ``INFO memory``. One master that does, or may, is enough to say so."""
        policy = eviction_policy(told)
        if not self.masters:
            self._report_policy(policy)
            return
        self._policies[address] = f"{policy} at {address}" if policy else policy
        known = list(self._policies.values())
        self._report_policy(next(filter(None, known), None if None in known else ""))

    def server_of(self, slot: int) -> Address:
        address = self.home if self.home is not None else self.masters[slot]
        if address is None:
            raise NotApplied(f"no server of the cluster has slot {slot}: is one down?")
        return address

    def invalidate(self, address: Address | None) -> None:
        """Something failed there, and it may not be what it was: look before the next request."""
        if address is not None and self.home not in (None, address):
            return  # it was replaced: we have looked
        self.is_current = False
        if address is not None:
            self._suspects.add(address)
            self._policies.pop(address, None)  # it may be started again with another

    # --- one request ----------------------------------------------------------------------------

    async def apply(self, name: str, request: Request) -> Reply:
        slot = self.slot_of(name)
        payload = encode_packed(self._space, name, request)
        if self._wait_command and request.__class__ is Acquire:
            return (await self._granted_to_replicas(slot, [(name, request)], payload, None))[0]
        raw = await self.call(slot, payload, lambda: encode(self._space, name, request).script)
        return await self.decode_reply(request, raw, slot)

    async def recover(
        self, address: Address, name: str, request: Request, payload: bytes, error: Any
    ) -> Reply:
        """The reply to a request that this server answered with an error."""
        if address != self.home:
            raise self._error_for(
                str(error), address
            )  # it was replaced meanwhile: the next try goes elsewhere
        script = encode(self._space, name, request).script
        raws = await self._settle([error], address, payload, lambda: script)
        return await self.decode_reply(request, raws[0], self.slot_of(name))

    async def decode_reply(self, request: Request, raw: Any, slot: int) -> Reply:
        answer = decode(request, raw)
        if answer.__class__ is Broken and self.masters:
            await self._notify_victims(answer, self.server_of(slot))
        return answer

    def slot_of(self, name: str) -> int:
        return slot_of(self._space, name) if self._space.sharded else 0

    async def call(self, slot: int, payload: bytes, script: Callable[[], Script]) -> Any:
        """The reply of the script to one call."""
        return (await self._call(slot, payload, 1, script))[0]

    async def _call(self, slot: int, payload: bytes, count: int, script: Callable[[], Script]) -> list[Any]:
        address = self.server_of(slot)
        raws = await self._exchange(address, payload, count)
        return await self._settle(raws, address, payload, script)

    async def _exchange(self, address: Address, payload: bytes, count: int) -> list[Any]:
        waits = bool(self._wait_command) and payload.endswith(self._wait_command)
        exchange = self._nodes.exchange_blocking if waits else self._nodes.exchange
        new = bool(self.masters) and address not in self._policies
        try:
            if new:
                raws = await exchange(address, INFO_MEMORY + payload, count + 1)
            else:
                raws = await exchange(address, payload, count)
        except TransientError:
            self.invalidate(address)
            raise
        if address in self._suspects:
            self._suspects.discard(address)
            self.is_current = self.is_current and not self.masters  # it is back: with its data, and its id?
        if new:
            self._note_policy(address, raws.pop(0))
        return raws

    async def _settle(
        self, raws: list[Any], address: Address, payload: bytes, script: Callable[[], Script]
    ) -> list[Any]:
        """Go on until the script has answered: load it, go where we are sent, raise what an error means."""
        count = len(raws)
        asking = False
        for _ in range(REDIRECTIONS_MAX):
            if not isinstance(raws[0], ReplyError):
                return raws
            message = str(raws[0])
            if message.startswith("NOSCRIPT"):
                await self._load(address, script())
            elif self.masters and (sent := parse_redirection(message)) is not None:
                address, asking = self.follow_redirection(address, *sent), not sent[0]
            else:
                raise self._error_for(message, address)
            if asking:
                raws = (await self._exchange(address, ASKING + payload, count + 1))[1:]
            else:
                raws = await self._exchange(address, payload, count)
        if isinstance(raws[0], ReplyError):
            raise self._error_for(str(raws[0]), address)
        return raws

    def follow_redirection(self, asked: Address, for_good: bool, slot: int, to: Address) -> Address:
        to = to if to.host else Address(asked.host, to.port)
        if for_good:
            self.masters[slot] = to
            self.is_current = False  # where one slot went, others did
        return to

    async def _load(self, address: Address, script: Script) -> None:
        load = pack_command(b"SCRIPT", b"LOAD", script.source)
        told = (await self._exchange(address, load, 1))[0]
        if isinstance(told, ReplyError):
            raise self._error_for(str(told), address)

    def _error_for(self, message: str, address: Address) -> Exception:
        if message.startswith(NOT_MASTER):
            self._nodes.drop(address)
            self.invalidate(address)
        failure = error_for(message, address)
        return _SlotMigratingError(str(failure)) if message.startswith("TRYAGAIN") else failure

    async def _notify_victims(self, broken: Broken, address: Address) -> None:
        """In a Cluster holders listen to no slot in particular: their own channel reaches them everywhere."""
        asked = [
            pack_command(b"PUBLISH", self._space.channel + victim.client.encode(), victim.nonce.encode())
            for victim in broken.victims
            if victim.client
        ]
        if asked:
            with contextlib.suppress(TransientError):  # the next renewal finds out
                await self._nodes.exchange(address, b"".join(asked), len(asked))

    # --- several at once ------------------------------------------------------------------------

    async def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        """In a Cluster: as many of the first as share a slot. Whoever asked goes on from there."""
        slot = self.slot_of(steps[0][0])
        count = next((n for n, (name, _) in enumerate(steps) if self.slot_of(name) != slot), len(steps))
        steps = steps[:count]
        called = encode_in_order(self._space, steps, stop_when_refused)
        if self._wait_command:
            return await self._granted_to_replicas(slot, list(steps), pack(called), called)
        return decode_all(steps, await self.call(slot, pack(called), lambda: called.script))

    async def renew_batch(self, steps: Steps) -> list[Reply]:
        """In pieces, one after the other: what is sent together holds up the server's other clients.

        In a Cluster a server that fails is no reason to give up what is held at others: of the steps that it
        did not answer we cannot tell (None).
        """
        told: list[Reply] = [None] * len(steps)  # type: ignore[list-item]  # None: see above
        trouble: Exception | None = None
        batches = encode_renew_batch(self._space, steps)
        for address, its in self._by_server(batches, steps):
            try:
                for piece in _pieces(its):
                    await self._tend_piece(address, piece, steps, told)
            except (TransientError, EngineUnavailable) as error:
                trouble = error
        if trouble is not None and (not self.masters or all(each is None for each in told)):
            raise trouble
        if any(each.__class__ is Gone for each in told):
            self.is_current = False  # it may have been all of its data that it lost
        return told

    def _by_server(self, batches: list[Batch], steps: Steps) -> list[tuple[Address | None, list[Batch]]]:
        """Servers in doubt come last: one that does not answer uses up its time when the others have."""
        by_server: dict[Address | None, list[Batch]] = {}
        for batch in batches:
            slot = self.slot_of(steps[batch.places[0]][0])
            by_server.setdefault(self.home or self.masters[slot], []).append(batch)
        return sorted(by_server.items(), key=lambda item: item[0] in self._suspects)

    async def _tend_piece(
        self, address: Address | None, batches: list[Batch], steps: Steps, told: list[Reply]
    ) -> None:
        """First what was answered as it should be; then, one after the other, what was not."""
        if address is None:
            raise NotApplied("no server of the cluster has some of the slots: is one down?")
        payloads = [pack(batch.command) for batch in batches]
        raws = await self._exchange(address, b"".join(payloads), len(payloads))
        failed: list[tuple[Batch, bytes, Any]] = []
        for batch, payload, raw in zip(batches, payloads, raws, strict=True):
            if isinstance(raw, ReplyError):
                failed.append((batch, payload, raw))
            else:
                _note(batch, raw, steps, told)
        await self._tend_again(address, failed, steps, told)

    async def _tend_again(
        self, address: Address, failed: list[tuple[Batch, bytes, Any]], steps: Steps, told: list[Reply]
    ) -> None:
        trouble: Exception | None = None
        doubted = set(self._suspects)
        for batch, payload, raw in failed:
            try:
                await self._tend_batch_again(address, batch, payload, raw, steps, told)
            except (TransientError, EngineUnavailable) as error:
                trouble = error
                if self._suspects - doubted:
                    break  # a server that does not answer is not waited for again and again
        if trouble is not None:
            raise trouble

    async def _tend_batch_again(
        self, address: Address, batch: Batch, payload: bytes, raw: Any, steps: Steps, told: list[Reply]
    ) -> None:
        try:
            settled = await self._settle([raw], address, payload, _script_of(batch.command))
        except _SlotMigratingError:
            if len(batch.places) == 1:
                raise
        else:
            _note(batch, settled[0], steps, told)
            return
        ones = [Batch(_tend_one(self._space, steps[place]), (place,)) for place in batch.places]
        await self._tend_piece(address, ones, steps, told)

    # --- acknowledged by replicas ---------------------------------------------------------------

    async def _granted_to_replicas(
        self, slot: int, steps: list[tuple[str, Request]], payload: bytes, called: Command | None
    ) -> list[Reply]:
        """Ask, have replicas acknowledge the answer on the same connection, or give all of it back."""
        called = encode(self._space, *steps[0]) if called is None else called
        raw, acknowledged = await self._call(slot, payload + self._wait_command, 2, _script_of(called))
        raws = raw if called.script.name == "apply_in_order" else [raw]
        told = decode_all(steps, raws)
        granted = [
            (name, request)
            for (name, request), answer in zip(steps, told, strict=False)
            if isinstance(request, Acquire) and isinstance(answer, Granted)
        ]
        if not granted:
            return told
        try:
            if any(each.__class__ is not int for each in raws):
                acknowledged = await self._written_again(slot, granted)
            if isinstance(acknowledged, int) and acknowledged >= self._settings.wait_replicas:
                return told
            for name, request in granted:
                release = encode_packed(self._space, name, Release(request.nonce))
                await self.call(slot, release, lambda: self._space.scripts["release"])
        except TransientError as error:
            raise OutcomeUnknown(str(error)) from None
        except EngineUnavailable as error:
            error.nothing_was_sent = False  # the grant was
            raise
        if isinstance(acknowledged, ReplyError):
            raise self._error_for(str(acknowledged), self.server_of(slot))
        wanted = self._settings.wait_replicas
        raise NotApplied(
            f"{acknowledged} of {wanted} replicas acknowledged the grant in time, so it was given back "
            "(wait_replicas, wait_timeout)"
        )

    async def _written_again(self, slot: int, granted: list[tuple[str, Acquire]]) -> Any:
        """How many replicas acknowledge what, perhaps, was not granted just now but is held since before.

        A request that finds it held writes nothing, and since Redis 7.2 replicas are waited for only as far
        as the connection itself wrote. So it is renewed: who has that, has all that was written before.
        """
        acknowledged: Any = 0
        renewals = [(name, Renew(request.nonce, request.ttl)) for name, request in granted]
        for called, _ in encode_renew_batch(self._space, renewals):
            payload = pack(called) + self._wait_command
            raw, acknowledged = await self._call(slot, payload, 2, _script_of(called))
            if any(each.__class__ is not Done for each in decode_all(renewals, raw)):
                return 0  # it is not held any more
        return acknowledged

    # --- all names ------------------------------------------------------------------------------

    async def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        found: list[tuple[str, Snapshot]] = []
        for address in [self.home] if self.home is not None else masters_of(self.masters):
            names = sorted(await self._scan(address, prefix))
            for start in range(0, len(names), INSPECT_BATCH):
                found += await self._look_at(address, names[start : start + INSPECT_BATCH])
        told = dict(found)  # a slot that is being moved shows at both ends
        return sorted(told.items(), key=lambda item: item[0].encode())

    async def _scan(self, address: Address, prefix: str) -> set[str]:
        names: set[str] = set()
        cursor = b"0"
        while True:
            asked = pack_command(
                b"SCAN",
                cursor,
                b"MATCH",
                scan_pattern(self._space, prefix),
                b"COUNT",
                b"%d" % SCAN_COUNT,
            )
            told = (await self._exchange(address, asked, 1))[0]
            if isinstance(told, ReplyError):
                raise self._error_for(str(told), address)
            cursor, keys = told
            for key in keys:
                name = name_of(self._space, key)
                if name is not None and name.startswith(prefix):
                    names.add(name)
            if cursor == b"0":
                return names

    async def _look_at(self, address: Address, names: list[str]) -> list[tuple[str, Snapshot]]:
        request = Inspect()
        payloads = [encode_packed(self._space, name, request) for name in names]
        raws = await self._exchange(address, b"".join(payloads), len(payloads))
        found = []
        for name, payload, raw in zip(names, payloads, raws, strict=True):
            settled = await self._settle([raw], address, payload, lambda: self._space.scripts["inspect"])
            snapshot = decode(request, settled[0])
            if isinstance(snapshot, Snapshot) and not (
                is_idle(snapshot.record) and snapshot.record.value is None
            ):
                found.append((name, snapshot))
        return found


def _pieces(batches: list[Batch]) -> Iterator[list[Batch]]:
    """What goes to one server in one go: at most so many keys."""
    piece: list[Batch] = []
    size = 0
    for batch in batches:
        if piece and size + len(batch.places) > BATCH_KEYS_MAX:
            yield piece
            piece, size = [], 0
        piece.append(batch)
        size += len(batch.places)
    yield piece


def _tend_one(space: Keyspace, step: tuple[str, Request]) -> Command:
    return encode_renew_batch(space, [step])[0].command


def _note(batch: Batch, raw: Any, steps: Steps, told: list[Reply]) -> None:
    its_steps = [steps[place] for place in batch.places]
    for place, its in zip(batch.places, decode_all(its_steps, raw), strict=True):
        told[place] = its


def _script_of(called: Command) -> Callable[[], Script]:
    return lambda: called.script


def _wait_for_replicas(settings: RedisConfig, io_timeout: float) -> bytes:
    """The command that waits for them: well within the time that we wait for the answer."""
    if not settings.wait_replicas:
        return b""
    milliseconds = max(int(min(settings.wait_seconds, io_timeout / 2) * 1000), 1)
    return pack_command(b"WAIT", b"%d" % settings.wait_replicas, b"%d" % milliseconds)
