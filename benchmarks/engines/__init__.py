"""The contestants, one file per group. A new engine adds a file and one line here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..contestant import Contestant
from . import files, memory, sqlite

__all__ = ["GROUPS", "Group", "chosen"]


@dataclass(frozen=True, slots=True)
class Group:
    """Contestants for the same job: the subject, its raw limit and the peers."""

    contestants: tuple[Contestant, ...]
    bases: Mapping[str, str]
    """Measurement → the contestant that ratios refer to. The others compare a contestant with itself."""

    def limited_to(self, keys: Collection[str] | None) -> Group:
        """Without the peers that are not installed; with ``keys``, only those."""
        wanted = (each for each in self.contestants if keys is None or each.key in keys)
        return replace(self, contestants=tuple(each for each in wanted if each.present))


GROUPS: Final[Mapping[str, Group]] = {
    "sqlite": Group(
        (*sqlite.CONTESTANTS, *files.CONTESTANTS),
        {"pairs": "sqlite-bare", "handoff": "flock", "waiting": "filelock", "contention": "filelock"},
    ),
    "memory": Group(memory.CONTESTANTS, {"pairs": "threading-lock"}),
}
"""What ``ENGINES=`` can name."""


def chosen(names: Iterable[str], keys: Collection[str] | None = None) -> tuple[Group, ...]:
    return tuple(GROUPS[name].limited_to(keys) for name in names)
