"""The mark of a holder that is about to write or advance, refused here if its lease cannot be relied on."""

from __future__ import annotations

from .arguments import Presentable, mark_of, presented, refuse_read_lease
from .rule import Mark

__all__ = ["mark_of_holder", "mark_of_writer"]


def mark_of_writer(lease_or_token: Presentable) -> Mark:
    """The mark presented for a write, which a read lease does not allow."""
    refuse_read_lease(lease_or_token)
    return mark_of_holder(lease_or_token)


def mark_of_holder(lease_or_token: Presentable) -> Mark:
    """The mark presented. ``LockLost`` if this process knows already that the lease is lost."""
    # A fence, a grant's text and a bare token do not know: the guard alone decides about them.
    check = getattr(presented(lease_or_token), "check", None)
    if callable(check):
        check()
    return mark_of(lease_or_token)
