"""The names of the recipes' records. Each recipe has names of its own, which no lock of a user can have."""

from __future__ import annotations

from ..core import arguments

__all__ = ["cell", "election"]


def cell(name: str) -> str:
    """The record that holds the value of a cell."""
    return f"_holdfast/cell:{arguments.check_name(name)}"


def election(name: str) -> str:
    """The record whose holder is the leader of an election."""
    return f"_holdfast/election:{arguments.check_name(name)}"
