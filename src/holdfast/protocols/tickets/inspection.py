"""Reading names without holding them."""

from __future__ import annotations

from ...rules.requests import Done, Inspect, Reply, Snapshot, Unwatch, Watch
from ...rules.tickets import LockView, record_of
from .acquisition import filled
from .client import TicketClient
from .store import EVERYTHING

__all__ = ["inspect", "list_names", "unwatch", "watch"]


async def inspect(client: TicketClient, name: str, request: Inspect) -> Snapshot:
    return await _snapshot(client, name, await client.store.read_queue(name))


async def _snapshot(client: TicketClient, name: str, view: LockView) -> Snapshot:
    view = view._replace(tickets=await filled(client, name, view.tickets))
    now = client.wall()
    return Snapshot(record_of(view, now), now)


async def watch(client: TicketClient, name: str, request: Watch) -> Snapshot:
    """Watch first, then read: no change is missed."""
    if request.nonce not in client.watching:
        client.watching.add(request.nonce)  # before: a watch may fire at once, and then it is gone
        try:
            await client.store.watch(request.nonce, name, EVERYTHING)
        except BaseException:
            client.watching.discard(request.nonce)
            raise
    return await _snapshot(client, name, await client.store.read_queue(name))


async def unwatch(client: TicketClient, name: str, request: Unwatch) -> Reply:
    """The driver has ended the engine's watch for the nonce already."""
    client.watching.discard(request.nonce)
    return Done()


async def list_names(client: TicketClient, prefix: str) -> list[tuple[str, Snapshot]]:
    found = []
    for name, view in await client.store.list_names(prefix):
        snapshot = await _snapshot(client, name, view)
        record = snapshot.record
        if record.holders or record.queue or record.value is not None:
            found.append((name, snapshot))
    return sorted(found, key=lambda entry: entry[0].encode())
