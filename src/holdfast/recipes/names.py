"""The names of the recipes' records. Each recipe has names of its own, which no lock of a user can have."""

from __future__ import annotations

from ..core import arguments
from ..protocols.records import WAITS

__all__ = ["cell", "election", "waits"]


def cell(name: str) -> str:
    """The record that holds the value of a cell."""
    return f"_holdfast/cell:{arguments.check_name(name)}"


def waits(client: str) -> str:
    """The record that shows what the waiters of a client wait for. Clients share a few of them, so that no
    client leaves one of its own behind."""
    return f"{WAITS}{client[:2]}"


def election(name: str) -> str:
    """The record whose holder is the leader of an election."""
    return f"_holdfast/election:{arguments.check_name(name)}"
