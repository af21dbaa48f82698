"""The names of the recipes' records. Each recipe has names of its own, which no lock of a user can have."""

from __future__ import annotations

from ..core import arguments

__all__ = ["GROUPS", "cell", "group", "group_state", "partition", "partitions"]

GROUPS = "_holdfast/group:"
"""The records of the groups that own partitions: each live member holds its group's as a reader."""


def cell(name: str) -> str:
    """The record that holds the value of a cell."""
    return f"_holdfast/cell:{arguments.check_name(name)}"


def group(name: str) -> str:
    """The record whose readers are the live members of a group."""
    return GROUPS + name


def group_state(name: str) -> str:
    """The record of the cell that says which member is to own which partition."""
    return f"_holdfast/group-state:{name}"


def partitions(group: str) -> str:
    """What the names of the partitions' locks begin with."""
    return f"_holdfast/partition:{group}/"


def partition(group: str, number: int) -> str:
    """The lock of one partition."""
    return f"{partitions(group)}{number}"
