"""The renewals and refreshes of a client, in batches, at all servers that have its records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hiredis import ReplyError

from ...core.effects import NotApplied, TransientError
from ...engine_api import Steps
from ...errors import EngineUnavailable
from ...rules.requests import Gone, Reply
from ..resp.config import Address
from .codec import BATCH_KEYS_MAX, Batch, decode_all, encode_renew_batch, pack
from .routing import Router
from .topology import SlotMigratingError

__all__ = ["renew_batch"]


async def renew_batch(router: Router, steps: Steps) -> list[Reply]:
    """Send the batches in pieces, one after the other: a server works on one piece and serves no other
    client.

    In a Cluster a server that fails does not stop the renewal at the others. The reply to a step that it did
    not answer is None: the outcome is unknown.
    """
    renewal = _Renewal(router, steps)
    topology = router.topology
    error: Exception | None = None
    for address, batches in renewal.by_server():
        try:
            for piece in _pieces(batches):
                await renewal.send(address, piece)
        except (TransientError, EngineUnavailable) as failure:
            error = failure
    replies = renewal.replies
    if error is not None and (not topology.masters or all(each is None for each in replies)):
        raise error
    if any(each.__class__ is Gone for each in replies):
        topology.is_current = False  # the server may have lost all of its data
    return replies


class _Renewal:
    """One call of ``renew_batch``: its steps, and the replies so far."""

    def __init__(self, router: Router, steps: Steps) -> None:
        self._router = router
        self._steps = steps
        self.replies: list[Reply] = [None] * len(steps)  # type: ignore[list-item]  # None: see renew_batch

    def by_server(self) -> list[tuple[Address | None, list[Batch]]]:
        """Suspects come last: one that does not answer uses up the time after the others have answered."""
        topology = self._router.topology
        by_server: dict[Address | None, list[Batch]] = {}
        for batch in encode_renew_batch(self._router.space, self._steps):
            slot = topology.slot_of(self._steps[batch.places[0]][0])
            by_server.setdefault(topology.home or topology.masters[slot], []).append(batch)
        return sorted(by_server.items(), key=lambda item: item[0] in topology.suspects)

    async def send(self, address: Address | None, batches: list[Batch]) -> None:
        """Note the replies of the batches that succeeded. Then repeat the others, one after the other."""
        if address is None:
            raise NotApplied("no server of the cluster has some of the slots: is one down?")
        payloads = [pack(batch.command) for batch in batches]
        raws = await self._router.exchange(address, b"".join(payloads), len(payloads))
        failed: list[tuple[Batch, bytes, Any]] = []
        for batch, payload, raw in zip(batches, payloads, raws, strict=True):
            if isinstance(raw, ReplyError):
                failed.append((batch, payload, raw))
            else:
                self._note(batch, raw)
        await self._repeat_all(address, failed)

    async def _repeat_all(self, address: Address, failed: list[tuple[Batch, bytes, Any]]) -> None:
        suspects = self._router.topology.suspects
        error: Exception | None = None
        suspects_before = set(suspects)
        for batch, payload, raw in failed:
            try:
                await self._repeat(address, batch, payload, raw)
            except (TransientError, EngineUnavailable) as failure:
                error = failure
                if suspects - suspects_before:
                    break  # do not wait again for a server that does not answer
        if error is not None:
            raise error

    async def _repeat(self, address: Address, batch: Batch, payload: bytes, raw: Any) -> None:
        """Repeat one batch, or each of its steps alone where a slot is half moved."""
        try:
            raws = await self._router.settle([raw], address, payload, lambda: batch.command.script)
        except SlotMigratingError:
            if len(batch.places) == 1:
                raise
        else:
            self._note(batch, raws[0])
            return
        await self.send(address, [self._batch_of_one(place) for place in batch.places])

    def _batch_of_one(self, place: int) -> Batch:
        (batch,) = encode_renew_batch(self._router.space, [self._steps[place]])
        return Batch(batch.command, (place,))

    def _note(self, batch: Batch, raw: Any) -> None:
        steps = [self._steps[place] for place in batch.places]
        for place, reply in zip(batch.places, decode_all(steps, raw), strict=True):
            self.replies[place] = reply


def _pieces(batches: list[Batch]) -> Iterator[list[Batch]]:
    """Batches that are sent together: at most ``BATCH_KEYS_MAX`` keys."""
    piece: list[Batch] = []
    size = 0
    for batch in batches:
        if piece and size + len(batch.places) > BATCH_KEYS_MAX:
            yield piece
            piece, size = [], 0
        piece.append(batch)
        size += len(batch.places)
    yield piece
