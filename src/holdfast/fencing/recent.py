"""The marks that this process has presented not long ago. No I/O.

A guard need not write what it has stored already. Which of its statements to try first, the one that stores
a mark or the one that finds it stored, is a guess that this memory makes good. It is never taken for
an answer: the statement looks itself, and whoever guessed wrong sends one more.
"""

from __future__ import annotations

from .rule import Mark

__all__ = ["LIMIT", "RecentMarks"]

LIMIT = 1024
"""Marks; of more, the one that was added first is forgotten."""


class RecentMarks:
    """For all connections and threads of a process; each method is one step on a dict, or harmless."""

    def __init__(self) -> None:
        self._marks: dict[tuple[str, Mark], None] = {}

    def has(self, resource: str, mark: Mark) -> bool:
        return (resource, mark) in self._marks

    def add(self, resource: str, mark: Mark) -> None:
        self._marks[resource, mark] = None
        if len(self._marks) > LIMIT:
            self._forget_the_first()

    def discard(self, resource: str, mark: Mark) -> None:
        self._marks.pop((resource, mark), None)

    def _forget_the_first(self) -> None:
        try:
            first = next(iter(self._marks))
        except (RuntimeError, StopIteration):
            return  # another thread is at it
        self._marks.pop(first, None)
