"""Single ownership: each partition of a group belongs to one live member, and moves only when it must.

    from holdfast import ownership

    with ownership.join(locks, "orders", partitions=64) as member:
        member.owns("customer-7")

``holdfast.ownership.aio`` has the same names for asyncio.
"""

from __future__ import annotations

from .model import GroupInfo, MemberInfo, Owner
from .names import partition_of
from .threads import Member, groups, join, owner_of, show

__all__ = ["GroupInfo", "Member", "MemberInfo", "Owner", "groups", "join", "owner_of", "partition_of", "show"]
