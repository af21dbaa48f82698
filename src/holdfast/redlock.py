"""What an operator does to the nodes of ``redlock://``: ``holdfast redlock`` calls these.

A node issues numbers only while its mark says that it has forgotten nothing. Nodes that are new are made a
set once; a node that lost its data, or may have, rejoins the set by being told what it forgot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import engines
from .errors import InvalidArgument

__all__ = ["NodeStatus", "initialise", "rejoin", "status"]


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """How one node stands, by its own word."""

    node: str
    """Its address as the URL has it."""
    state: str
    """``ready``; ``restarted`` (its mark is of an earlier start), ``primed`` (being initialised), ``empty``
    (new, or it forgot), ``unfit`` (it cannot be a node) or ``unreachable``."""
    trouble: str
    """Why it does not take part and what to do about it; empty: it does."""

    @property
    def takes_part(self) -> bool:
        return not self.trouble


def status(url: str) -> list[NodeStatus]:
    """How every node stands, in the order of the URL. Changes nothing."""
    return [NodeStatus(*each) for each in _administration().status(url)]


def initialise(url: str) -> str:
    """Make one set of the nodes that a URL names; the id of the set, also where they were one already.

    All nodes must answer and be empty. Clients do it by themselves unless their URL says ``init=manual``.
    """
    found: str = _administration().initialise(url)
    return found


def rejoin(
    url: str, nodes: Iterable[str] | None = None, *, wait: float | None = None, durable: bool = False
) -> dict[str, str]:
    """Have nodes that forgot take part again (without ``nodes``: all that do not). What became of each.

    Waits until nothing that they granted can still be relied on: a little longer than the longest ttl that
    was ever asked for, or for ``wait`` seconds if the operator knows better. Then tells them the numbers that
    a majority has issued. ``durable``: the operator knows that a restarted node lost nothing.
    """
    administration = _administration()
    labels = administration.nodes_of(url)
    chosen = set(nodes or ()) or {each.node for each in status(url) if not each.takes_part}
    for node in chosen:
        if node not in labels:
            raise InvalidArgument(f"{node!r} is no node of this URL: it names {', '.join(labels)}")
    told = administration.rejoin(url, {labels.index(node) for node in chosen}, wait, durable)
    return {labels[index]: what for index, what in sorted(told.items())}


def _administration() -> Any:
    """A module, loaded when it is needed."""
    return engines.load("redlock.admin")
