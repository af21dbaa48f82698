"""Names: the partition that a key belongs to, and a name for a member that was given none."""

from __future__ import annotations

import secrets

from ..recipes import assignment
from ..recipes import ownership as recipe

__all__ = ["new_member_name", "partition_of"]


def partition_of(key: str | bytes, partitions: int) -> int:
    """The partition of a key in a group with so many: the same in every process, for ever."""
    return assignment.partition_of(recipe.check_key(key), recipe.check_partitions(partitions))


def new_member_name(owner_prefix: str) -> str:
    """A name for a member that was given none."""
    host, pid = owner_prefix.split("/")[:2]
    return f"{host[:32]}-{pid}-{secrets.token_hex(3)}"
