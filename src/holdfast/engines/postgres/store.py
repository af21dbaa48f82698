"""Operations that take several statements, written once for both drivers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

from psycopg.pq.abc import PGresult

from ...engine_api import Steps
from ...rules.requests import Reply, Snapshot
from .codec import Call, decode_page, decode_replies, function_result
from .statements import PAGE, Statements, renewal_batches

__all__ = ["Query", "list_names", "read_pages", "renew_batch"]


class Query(NamedTuple):
    """Execute a statement on a connection of the pool."""

    call: Call

    def __await__(self) -> Generator[Query, PGresult, PGresult]:
        return (yield self)


async def renew_batch(statements: Statements, steps: Steps) -> list[Reply]:
    replies: dict[int, Reply] = {}
    for batch in renewal_batches(steps):
        renewals = [step for _, step in batch]
        result = await Query(statements.renew_batch(renewals))
        decoded = decode_replies(function_result(result), [request for _, request in renewals])
        replies.update(zip([index for index, _ in batch], decoded, strict=True))
    return [replies[index] for index in range(len(steps))]


async def list_names(statements: Statements, prefix: str) -> list[tuple[str, Snapshot]]:
    return await read_pages(lambda after: statements.list_names(prefix, after))


async def read_pages(page_after: Callable[[str], Call]) -> list[tuple[str, Snapshot]]:
    """All names; each page begins after the last name of the one before."""
    found: list[tuple[str, Snapshot]] = []
    while True:
        page = decode_page(await Query(page_after(found[-1][0] if found else "")))
        found += page
        if len(page) < PAGE:
            return found
