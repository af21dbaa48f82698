"""``holdfast group``: the members of groups, and which partitions they own."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import holdfast

from .exits import Status
from .options import JSON, NAMESPACE, URL, Argument, Command, Group

if TYPE_CHECKING:
    from holdfast.ownership import GroupInfo, MemberInfo

__all__ = ["GROUP", "LS", "SHOW"]

EPILOG = """
Examples:
  holdfast group ls
  holdfast group show orders
"""

LS_EPILOG = """
Examples:
  holdfast group ls
  holdfast group ls --json | jq -r '.[] | select(.settled | not) | .group'
"""

SHOW_EPILOG = """
Examples:
  holdfast group show orders
  holdfast group show orders --json | jq -r '.members[] | "\\(.member) \\(.owned | length)"'

Exit status: 0 if there is a group of that name, otherwise 1.
"""


def ls(url: str | None, namespace: str, json: bool) -> None:
    """List groups that have members, or had members recently."""
    from holdfast import ownership

    from .output import print_json, print_lines, print_table

    with holdfast.connect(url, namespace=namespace) as client:
        found = ownership.groups(client)
    if json:
        print_json([_as_json(info) for info in found])
    elif not found:
        print_lines("no group has members")
    else:
        rows = [
            (
                info.group,
                str(sum(member.present for member in info.members)),
                str(info.partitions),
                str(sum(owner is not None for owner in info.owners)),
                _state(info),
            )
            for info in found
        ]
        print_table("", ("group", "members", "partitions", "owned", "state"), rows)


def show(name: str, url: str | None, namespace: str, json: bool) -> int:
    """Show the members of a group, and the partitions that each of them owns."""
    from holdfast import ownership

    from .output import print_json, print_lines, print_table

    with holdfast.connect(url, namespace=namespace) as client:
        info = ownership.show(client, name)
    if json:
        print_json(None if info is None else _as_json(info))
    elif info is None:
        print_lines(f"there is no group {name!r}")
    else:
        owned = sum(owner is not None for owner in info.owners)
        print_lines(f"{name}: {owned} of {info.partitions} partitions owned, {_state(info)}")
        headings = ("member", "process", "for", "owns", "to own", "partitions")
        print_table("", headings, [_row(member) for member in info.members])
    return Status.NOTHING_DONE if info is None else Status.OK


def _state(info: GroupInfo) -> str:
    if not any(member.present for member in info.members):
        return "no member is there"
    return "settled" if info.settled else "moving"


def _row(member: MemberInfo) -> tuple[str, ...]:
    from .output import age

    away = f"away, kept for {age(member.rejoin_within)}" if member.rejoin_within else "gone"
    process = member.owner if member.present else away
    counts = (str(len(member.owned)), str(len(member.assigned)))
    return (
        member.member,
        process,
        age(member.age) if member.present else "",
        *counts,
        _ranges(member.owned),
    )


def _ranges(numbers: tuple[int, ...]) -> str:
    """``0-3 7 9-10``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _as_json(info: GroupInfo) -> dict[str, Any]:
    """A stable document: fields are added, never renamed."""
    document = dataclasses.asdict(info)
    for member, fields in zip(info.members, document["members"], strict=True):
        fields["present"] = member.present
    return document


LS = Command(ls, (URL, NAMESPACE, JSON), LS_EPILOG)
SHOW = Command(show, (Argument("name", "The name of the group."), URL, NAMESPACE, JSON), SHOW_EPILOG)
GROUP = Group(
    "Show the owners of the partitions of groups.",
    {"ls": "group:LS", "show": "group:SHOW"},
    EPILOG,
)
