"""Looking at names without holding them."""

from __future__ import annotations

from ...rules.requests import Done, Inspect, Reply, Snapshot, Unwatch, Watch
from ...rules.tickets import LockView, record_of
from .acquisition import filled
from .client import TicketClient
from .store import EVERYTHING, Arm, Look, Names, Wall

__all__ = ["inspect", "list_names", "unwatch", "watch"]


async def inspect(client: TicketClient, name: str, request: Inspect) -> Snapshot:
    return await _snapshot(name, await Look(name))


async def _snapshot(name: str, view: LockView) -> Snapshot:
    view = view._replace(tickets=await filled(name, view.tickets))
    now = await Wall()
    return Snapshot(record_of(view, now), now)


async def watch(client: TicketClient, name: str, request: Watch) -> Snapshot:
    """Watch first, then look: no change is missed."""
    if request.nonce not in client.watching:
        client.watching.add(
            request.nonce
        )  # before: what is armed may come at once, and then is armed no more
        try:
            await Arm(request.nonce, name, EVERYTHING)
        except BaseException:
            client.watching.discard(request.nonce)
            raise
    return await _snapshot(name, await Look(name))


async def unwatch(client: TicketClient, name: str, request: Unwatch) -> Reply:
    """The driver has told the engine already that nobody listens to the nonce any more."""
    client.watching.discard(request.nonce)
    return Done()


async def list_names(client: TicketClient, prefix: str) -> list[tuple[str, Snapshot]]:
    told = []
    for name, view in await Names(prefix):
        snapshot = await _snapshot(name, view)
        record = snapshot.record
        if record.holders or record.queue or record.value is not None:
            told.append((name, snapshot))
    return sorted(told, key=lambda entry: entry[0].encode())
