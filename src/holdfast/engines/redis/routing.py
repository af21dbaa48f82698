"""The way of a request to the server that has its record. No I/O here.

Two causes of an error reply are handled here, because nothing has happened: a script that the server does not
have (yet, or since its restart), and a slot that moved. Every other error goes to the protocol.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

from hiredis import ReplyError

from ...core.effects import NotApplied, OutcomeUnknown, TransientError, mark_never_sent
from ...engine_api import AdapterContext, Steps
from ...errors import EngineUnavailable
from ...rules.requests import Acquire, Broken, Done, Granted, Release, Renew, Reply, Request
from ..resp.codec import pack_command
from ..resp.config import Address
from ..resp.scripts import Script, is_missing, load_command
from .codec import (
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
from .errors import parse_redirection
from .keys import Keyspace
from .topology import INFO_MEMORY, ServerConnections, Topology

__all__ = ["ReplicaAcknowledgement", "Router"]

REDIRECTIONS_MAX: Final = 8
"""A request that was redirected more often than this is refused: the slots of the Cluster are moving."""

ASKING: Final = pack_command(b"ASKING")


class ReplicaAcknowledgement:
    """``wait_replicas``: a grant counts once replicas have acknowledged it. Otherwise it is released.

    Sends ``WAIT`` behind each acquire, on the same connection.
    """

    def __init__(self, router: Router, config: RedisConfig, io_timeout: float) -> None:
        self._router = router
        self._replicas = config.wait_replicas
        # The server must answer well within the time that the client waits.
        milliseconds = max(int(min(config.wait_seconds, io_timeout / 2) * 1000), 1)
        self._wait = pack_command(b"WAIT", b"%d" % config.wait_replicas, b"%d" % milliseconds)

    async def acquire(
        self, slot: int, steps: list[tuple[str, Request]], payload: bytes, command: Command | None
    ) -> list[Reply]:
        """Apply the steps. Where too few replicas acknowledge the grants, release all of them and raise."""
        command = encode(self._router.space, *steps[0]) if command is None else command
        raw, acknowledged = await self._call(slot, payload, command)
        raws = raw if command.script.name == "apply_in_order" else [raw]
        replies = decode_all(steps, raws)
        granted = [
            (name, request)
            for (name, request), reply in zip(steps, replies, strict=False)
            if isinstance(request, Acquire) and isinstance(reply, Granted)
        ]
        if not granted:
            return replies
        try:
            if any(each.__class__ is not int for each in raws):
                acknowledged = await self._renew_and_wait(slot, granted)
            if isinstance(acknowledged, int) and acknowledged >= self._replicas:
                return replies
            await self._release(slot, granted)
        except TransientError as error:
            raise OutcomeUnknown(str(error)) from None
        except (EngineUnavailable, KeyboardInterrupt) as error:
            mark_never_sent(error, False)  # the grant was
            raise
        if isinstance(acknowledged, ReplyError):
            topology = self._router.topology
            raise topology.error_for(str(acknowledged), topology.server_of(slot))
        raise NotApplied(
            f"{acknowledged} of {self._replicas} replicas acknowledged the grant in time, so it was released "
            "(wait_replicas, wait_timeout)"
        )

    async def _call(self, slot: int, payload: bytes, command: Command) -> list[Any]:
        return await self._router.call_many(
            slot, payload + self._wait, 2, lambda: command.script, may_block=True
        )

    async def _release(self, slot: int, granted: list[tuple[str, Acquire]]) -> None:
        space = self._router.space
        for name, request in granted:
            payload = encode_packed(space, name, Release(request.nonce))
            await self._router.call(slot, payload, lambda: space.scripts["release"])

    async def _renew_and_wait(self, slot: int, granted: list[tuple[str, Acquire]]) -> Any:
        """How many replicas have what may be held since an earlier request of the same attempt.

        A request that finds the lock held by its own attempt writes nothing, and since Redis 7.2 ``WAIT``
        waits only for the writes of its own connection. A renewal writes: a replica that has it has
        everything before.
        """
        acknowledged: Any = 0
        renewals = [(name, Renew(request.nonce, request.ttl)) for name, request in granted]
        for command, _ in encode_renew_batch(self._router.space, renewals):
            raw, acknowledged = await self._call(slot, pack(command), command)
            if any(each.__class__ is not Done for each in decode_all(renewals, raw)):
                return 0  # it is not held any more
        return acknowledged


class Router:
    """Sends the requests of one client to the servers of one keyspace."""

    def __init__(
        self,
        config: RedisConfig,
        space: Keyspace,
        connections: ServerConnections,
        context: AdapterContext,
        report_policy: Callable[[str | None], None],
    ) -> None:
        self.topology = Topology(config, space, connections, report_policy)
        self.space = space
        self._connections = connections
        self._acknowledgement = (
            ReplicaAcknowledgement(self, config, context.io_timeout) if config.wait_replicas else None
        )

    async def apply(self, name: str, request: Request) -> Reply:
        slot = self.topology.slot_of(name)
        payload = encode_packed(self.space, name, request)
        if self._acknowledgement is not None and request.__class__ is Acquire:
            return (await self._acknowledgement.acquire(slot, [(name, request)], payload, None))[0]
        raw = await self.call(slot, payload, lambda: encode(self.space, name, request).script)
        return await self._decode(request, raw, slot)

    async def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        """In a Cluster: the first steps that share a slot. The caller goes on with the rest."""
        slot_of = self.topology.slot_of
        slot = slot_of(steps[0][0])
        count = next((n for n, (name, _) in enumerate(steps) if slot_of(name) != slot), len(steps))
        steps = steps[:count]
        command = encode_in_order(self.space, steps, stop_when_refused)
        if self._acknowledgement is not None and steps[0][1].__class__ is Acquire:
            return await self._acknowledgement.acquire(slot, list(steps), pack(command), command)
        return decode_all(steps, await self.call(slot, pack(command), lambda: command.script))

    async def recover(
        self, address: Address, name: str, request: Request, payload: bytes, error: Any
    ) -> Reply:
        """The reply to a request that this server answered with an error."""
        if address != self.topology.home:  # it was replaced since then: the next try goes to the new server
            raise self.topology.error_for(str(error), address)
        script = encode(self.space, name, request).script
        raws = await self.settle([error], address, payload, lambda: script)
        return await self._decode(request, raws[0], self.topology.slot_of(name))

    async def _decode(self, request: Request, raw: Any, slot: int) -> Reply:
        reply = decode(request, raw)
        if reply.__class__ is Broken and self.topology.masters:
            await self._notify_victims(reply, self.topology.server_of(slot))
        return reply

    async def _notify_victims(self, broken: Broken, address: Address) -> None:
        """In a Cluster a holder subscribes to no sharded channel. Its own channel reaches it at every
        server."""
        messages = [
            pack_command(b"PUBLISH", self.space.channel + victim.client.encode(), victim.nonce.encode())
            for victim in broken.victims
            if victim.client
        ]
        if messages:
            with contextlib.suppress(TransientError):  # the next renewal reports the loss
                await self._connections.exchange(address, b"".join(messages), len(messages))

    # --- calls ----------------------------------------------------------------------------------

    async def call(self, slot: int, payload: bytes, script: Callable[[], Script]) -> Any:
        """The reply of a script to one call."""
        return (await self.call_many(slot, payload, 1, script))[0]

    async def call_many(
        self, slot: int, payload: bytes, count: int, script: Callable[[], Script], may_block: bool = False
    ) -> list[Any]:
        address = self.topology.server_of(slot)
        raws = await self.exchange(address, payload, count, may_block)
        return await self.settle(raws, address, payload, script, may_block)

    async def exchange(
        self, address: Address, payload: bytes, count: int, may_block: bool = False
    ) -> list[Any]:
        """Send to one server. ``may_block``: the replies may take long (``WAIT``)."""
        topology = self.topology
        exchange = self._connections.exchange_blocking if may_block else self._connections.exchange
        is_new = bool(topology.masters) and address not in topology.policies
        try:
            if is_new:
                raws = await exchange(address, INFO_MEMORY + payload, count + 1)
            else:
                raws = await exchange(address, payload, count)
        except TransientError:
            topology.invalidate(address)
            raise
        if address in topology.suspects:
            topology.answered(address)
        if is_new:
            topology.note_policy(address, raws.pop(0))
        return raws

    async def settle(
        self,
        raws: list[Any],
        address: Address,
        payload: bytes,
        script: Callable[[], Script],
        may_block: bool = False,
    ) -> list[Any]:
        """Repeat until the script has answered: load it, follow redirections, raise any other error."""
        count = len(raws)
        is_asking = False
        for _ in range(REDIRECTIONS_MAX):
            if not isinstance(raws[0], ReplyError):
                return raws
            message = str(raws[0])
            if is_missing(message):
                await self._load(address, script())
            elif self.topology.masters and (redirection := parse_redirection(message)) is not None:
                address = self.topology.follow_redirection(address, *redirection)
                is_asking = not redirection[0]
            else:
                raise self.topology.error_for(message, address)
            if is_asking:
                raws = (await self.exchange(address, ASKING + payload, count + 1, may_block))[1:]
            else:
                raws = await self.exchange(address, payload, count, may_block)
        if isinstance(raws[0], ReplyError):
            raise self.topology.error_for(str(raws[0]), address)
        return raws

    async def _load(self, address: Address, script: Script) -> None:
        reply = (await self.exchange(address, load_command(script), 1))[0]
        if isinstance(reply, ReplyError):
            raise self.topology.error_for(str(reply), address)
