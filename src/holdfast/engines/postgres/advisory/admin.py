"""Requests of clients that do not hold the lock: breaking it, inspecting, watching, listing names."""

from __future__ import annotations

from typing import Final

from ....errors import Unsupported
from ....rules.requests import (
    Break,
    Broken,
    Done,
    Exhausted,
    Inspect,
    ReadCell,
    Reply,
    Resize,
    Snapshot,
    SwapCell,
    Unwatch,
    Watch,
)
from ..codec import decode_reply, function_result
from ..store import read_pages
from .acquisition import NO_SEMAPHORES
from .effects import Query, Sleep
from .pool import SessionPool
from .statements import decode_backends, decode_break, decode_look

__all__ = ["apply_to_cell", "break_lock", "inspect", "list_names", "resize", "unwatch", "watch"]

RELEASE_CHECKS: Final = 40
RELEASE_CHECK_SECONDS: Final = 0.025
"""How long the holder of a broken lock has to release it, before the server ends its connection."""


async def break_lock(pool: SessionPool, name: str, request: Break) -> Reply:
    """The holder is asked to release the lock and keeps its others; otherwise its connection is ended."""
    broken = decode_break(await Query(pool.statements.break_lock(name, request)))
    if broken is None:
        return Exhausted()
    backends = broken.backends
    for _ in range(RELEASE_CHECKS):
        if not backends:
            break
        # A backend that was once seen without the lock is done: what it has later is another grant.
        backends = decode_backends(await Query(pool.statements.still_holding(name, backends)))
        await Sleep(RELEASE_CHECK_SECONDS if backends else 0.0)
    if backends:
        await Query(pool.statements.terminate(name, backends))
    return Broken(broken.token, broken.victims)


async def inspect(pool: SessionPool, name: str, request: Inspect) -> Reply:
    return decode_look(await Query(pool.statements.look(name)))


async def apply_to_cell(pool: SessionPool, name: str, request: ReadCell | SwapCell) -> Reply:
    """A cell has no holder, so no session is involved."""
    return decode_reply(function_result(await Query(pool.statements.cells.apply(name, request))), request)


async def watch(pool: SessionPool, name: str, request: Watch) -> Reply:
    pool.watching.add(request.nonce)
    return decode_look(await Query(pool.statements.look(name)))


async def unwatch(pool: SessionPool, name: str, request: Unwatch) -> Reply:
    pool.watching.discard(request.nonce)
    return Done()


async def resize(pool: SessionPool, name: str, request: Resize) -> Reply:
    raise Unsupported(NO_SEMAPHORES)


async def list_names(pool: SessionPool, prefix: str) -> list[tuple[str, Snapshot]]:
    found = await read_pages(lambda after: pool.statements.list_names(prefix, after))
    return [(name, s) for name, s in found if s.record.holders or s.record.queue or s.record.value]
