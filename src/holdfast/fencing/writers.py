"""Which holder may write, decided before any I/O: what guards of key-value stores ask of a lease."""

from __future__ import annotations

from typing import Any

from ..errors import Conflict, InvalidArgument
from .arguments import Presentable, mark_of, presented, refuse_read_lease
from .plans import TRIES, Commit, Found, Plan, Read
from .rule import Mark, moved

__all__ = ["advancing_mark", "moving", "ticket_of", "writing_mark"]


def writing_mark(lease_or_token: Presentable) -> Mark:
    """The mark to present with a write. Read leases are refused, and leases that are lost or released.

    A lease that is lost raises its own ``LockLost`` here, without a request: the storage need not be asked.
    A fence, a grant's text and a bare token cannot know; those the storage refuses.
    """
    given = presented(lease_or_token)
    refuse_read_lease(given)
    return advancing_mark(given)


def advancing_mark(lease_or_token: Presentable) -> Mark:
    """The same where nothing is written: a read lease may shut older holders out."""
    given = presented(lease_or_token)
    mark = mark_of(given)
    check = getattr(given, "check", None)
    if callable(check):
        check()
    return mark


def ticket_of(lease: Any, engine: str) -> Any:
    """Where this engine keeps the grant. Known to the client that holds it, and to no other."""
    find = getattr(lease, "_ticket", None)
    if find is None:
        raise InvalidArgument(
            f"{type(lease).__name__} is no lease: only the lease itself, in the process that holds it,"
            f" knows its ticket in {engine}. For a fence, a grant's text or a token there is the guard of"
            " its own"
        )
    lease.check()
    handle = find() if lease.fence.source.startswith(f"{engine}/") else None
    if handle is None:
        raise InvalidArgument(
            f"the lease of {lease.name!r} has no ticket in this {engine}: its tokens are those of"
            f" {lease.fence.source!r}. Take the lock with {engine}://, or use the guard for tokens of any"
            " source"
        )
    return handle


def moving(resource: str, source: str) -> Plan[None]:
    """Store that the resource belongs to another source, deliberately. Yields ``Read`` and ``Commit``."""
    for _ in range(TRIES):
        found: Found = yield Read(resource)
        target = moved(found.mark, source)
        if target == found.mark or (yield Commit(resource, target, found.version)):
            return
    raise Conflict(f"the guard of {resource!r} was changed by others {TRIES} times in a row: try again")
