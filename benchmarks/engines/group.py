"""Contestants that do the same job, and the servers they do it with."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from ..contestant import Contestant
from ..service import Service

__all__ = ["Group"]


def no_servers() -> AbstractContextManager[Service]:
    return nullcontext(Service())


@dataclass(frozen=True, slots=True)
class Group:
    """The subject, its raw limit and the peers."""

    title: str
    contestants: tuple[Contestant, ...]
    measures: tuple[str, ...]
    """The measurements that say something about them."""
    bases: Mapping[str, str]
    """Measurement → the contestant that ratios refer to. The others compare a contestant with itself."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Measurement → what has to be said about it in this group."""
    serve: Callable[[], AbstractContextManager[Service]] = no_servers
    """Starts the servers; they are gone with the context."""
    locks: bool = True
    """Its contestants are locks, which prove first that they exclude."""
    least_scripts: int | None = None
    """How many scripts a pair of the subject runs, where more of them show grants that took longer."""

    def limited_to(self, keys: Collection[str] | None) -> Group:
        """Without the peers that are not installed; with ``keys``, only those."""
        wanted = (each for each in self.contestants if keys is None or each.key in keys)
        return replace(self, contestants=tuple(each for each in wanted if each.present))

    def without(self, contestant: Contestant) -> Group:
        return replace(self, contestants=tuple(each for each in self.contestants if each != contestant))
