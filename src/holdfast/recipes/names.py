"""The names of the recipes' records. Each recipe has names of its own, which no lock of a user can have."""

from __future__ import annotations

from ..core import arguments

__all__ = ["barrier", "barrier_parties", "cell", "latch"]


def cell(name: str) -> str:
    """The record that holds the value of a cell."""
    return f"_holdfast/cell:{arguments.check_name(name)}"


def latch(name: str) -> str:
    """The record that holds the count of a latch."""
    return f"_holdfast/latch:{arguments.check_name(name)}"


def barrier(name: str) -> str:
    """The record that holds the state of a barrier."""
    return f"_holdfast/barrier:{arguments.check_name(name)}"


def barrier_parties(name: str) -> str:
    """The reader/writer lock of which each party that waits at a barrier holds a read lease."""
    return f"_holdfast/parties:{arguments.check_name(name)}"
