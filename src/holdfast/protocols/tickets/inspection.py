"""Looking at names without holding them."""

from __future__ import annotations

from ...rules.requests import Done, Inspect, Reply, Snapshot, Unwatch, Watch
from ...rules.tickets import LockView, record_of
from .acquisition import filled
from .client import TicketClient
from .store import EVERYTHING, Arm, Look, Names, Wall

__all__ = ["inspect", "list_names", "unwatch", "watch"]


async def inspect(desk: TicketClient, name: str, ask: Inspect) -> Snapshot:
    return await _snapshot(name, await Look(name))


async def _snapshot(name: str, stand: LockView) -> Snapshot:
    stand = stand._replace(tickets=await filled(name, stand.tickets))
    now = await Wall()
    return Snapshot(record_of(stand, now), now)


async def watch(desk: TicketClient, name: str, ask: Watch) -> Snapshot:
    """Watch first, then look: no change is missed."""
    if ask.nonce not in desk.watching:
        desk.watching.add(ask.nonce)  # before: what is armed may come at once, and then is armed no more
        try:
            await Arm(ask.nonce, name, EVERYTHING)
        except BaseException:
            desk.watching.discard(ask.nonce)
            raise
    return await _snapshot(name, await Look(name))


async def unwatch(desk: TicketClient, name: str, ask: Unwatch) -> Reply:
    """The driver has told the engine already that nobody listens to the nonce any more."""
    desk.watching.discard(ask.nonce)
    return Done()


async def list_names(desk: TicketClient, prefix: str) -> list[tuple[str, Snapshot]]:
    told = []
    for name, stand in await Names(prefix):
        snapshot = await _snapshot(name, stand)
        record = snapshot.record
        if record.holders or record.queue or record.value is not None:
            told.append((name, snapshot))
    return sorted(told, key=lambda entry: entry[0].encode())
