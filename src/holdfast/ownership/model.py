"""What groups and their members look like from outside: values, for people and for the command line."""

from __future__ import annotations

from dataclasses import dataclass

from ..recipes import assignment
from ..recipes.ownership import Group

__all__ = ["GroupInfo", "MemberInfo", "Owner", "describe"]


@dataclass(frozen=True, slots=True)
class Owner:
    """The member that owns a partition now."""

    member: str
    partition: int
    token: int
    """The fencing token of its lease."""


@dataclass(frozen=True, slots=True)
class MemberInfo:
    """A member of a group."""

    member: str
    owner: str
    """``host/pid/thread-or-task`` of its process; empty: it is away, and its partitions are kept for it."""
    age: float
    """Seconds since it joined."""
    rejoin_within: float
    """For how many seconds its partitions are kept while it is away; 0: not at all."""
    assigned: tuple[int, ...]
    """The partitions that it is to own."""
    owned: tuple[int, ...]
    """Those that it owns."""

    @property
    def present(self) -> bool:
        return bool(self.owner)


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """A group with its members and the owners of its partitions."""

    group: str
    partitions: int
    generation: int
    """How often the assignment has changed."""
    members: tuple[MemberInfo, ...]
    owners: tuple[Owner | None, ...]
    """The owner of each partition; None: it has none at the moment."""
    settled: bool
    """All members have their share, and every partition is owned by the member that is to own it."""


def describe(group: Group) -> GroupInfo:
    state = group.state
    owned: dict[str, list[int]] = {}
    for partition, standing in sorted(group.owners.items()):
        owned.setdefault(standing.member, []).append(partition)
    members = []
    for name in sorted({*state.members, *group.instances}):
        instance = group.instances.get(name)
        members.append(
            MemberInfo(
                name,
                instance.owner if instance else "",
                max(group.now - instance.since, 0.0) if instance else 0.0,
                instance.rejoin_within if instance else state.members[name],
                tuple(sorted(assignment.partitions_of(state, name))),
                tuple(owned.get(name, ())),
            )
        )
    owners = []
    for partition in range(len(state.owners)):
        found = group.owners.get(partition)
        owners.append(None if found is None else Owner(found.member, partition, found.token))
    is_settled = (
        bool(members)
        and group.instances.keys() <= state.members.keys()
        and all(member.assigned == member.owned for member in members)
    )
    return GroupInfo(
        group.name, len(state.owners), state.generation, tuple(members), tuple(owners), is_settled
    )
