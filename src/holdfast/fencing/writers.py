"""Which holder may write, decided before any I/O: what guards of key-value stores ask of a lease."""

from __future__ import annotations

from .arguments import Presentable, mark_of, presented, refuse_read_lease
from .rule import Mark

__all__ = ["advancing_mark", "writing_mark"]


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
