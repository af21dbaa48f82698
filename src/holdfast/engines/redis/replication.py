"""``wait_replicas``: a grant counts once replicas have acknowledged it. Otherwise it is released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hiredis import ReplyError

from ...core.effects import NotApplied, OutcomeUnknown, TransientError
from ...errors import EngineUnavailable
from ...rules.requests import Acquire, Done, Granted, Release, Renew, Reply, Request
from ..resp.codec import pack_command
from .codec import Command, decode_all, encode, encode_packed, encode_renew_batch, pack
from .config import RedisConfig

if TYPE_CHECKING:
    from .routing import Router

__all__ = ["ReplicaAcknowledgement"]


class ReplicaAcknowledgement:
    """Sends ``WAIT`` behind each acquire, on the same connection."""

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
        except EngineUnavailable as error:
            error.nothing_was_sent = False  # the grant was
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
