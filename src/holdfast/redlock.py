"""Administration of the nodes of ``redlock://``, as ``holdfast redlock`` does it.

A node issues numbers only while its mark says that it has lost no data. New nodes are made a set once. A node
that lost its data, or may have lost it, rejoins the set: it gets the numbers that a majority has issued.
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
    """The status of one node, as it reports it."""

    node: str
    """Its address as the URL has it."""
    state: str
    """``ready``, ``restarted`` (its mark is of an earlier start), ``primed`` (being initialised), ``empty``
    (new, or its data was lost), ``unfit`` (it cannot be a node) or ``unreachable``."""
    trouble: str
    """Why the node does not take part and what to do about it; empty: it takes part."""

    @property
    def takes_part(self) -> bool:
        return not self.trouble


def status(url: str) -> list[NodeStatus]:
    """The status of every node, in the order of the URL. Changes nothing."""
    return [NodeStatus(*each) for each in _admin().status(url)]


def initialise(url: str) -> str:
    """Make a set of the nodes of a URL. Returns the id of the set, also where they were a set already.

    All nodes must answer and be empty. Clients do this by themselves unless their URL says ``init=manual``.
    """
    found: str = _admin().initialise(url)
    return found


def rejoin(
    url: str, nodes: Iterable[str] | None = None, *, wait: float | None = None, durable: bool = False
) -> dict[str, str]:
    """Have nodes take part again after data loss (without ``nodes``: all that do not). Returns each node's
    result.

    Waits until every lease that the nodes granted has ended: a little longer than the longest ttl that was
    ever requested, or ``wait`` seconds if the operator knows a shorter bound. Then copies the numbers that a
    majority has issued. ``durable``: the operator knows that a restarted node lost nothing.
    """
    admin = _admin()
    labels = admin.nodes_of(url)
    chosen = set(nodes or ()) or {each.node for each in status(url) if not each.takes_part}
    for node in chosen:
        if node not in labels:
            raise InvalidArgument(f"{node!r} is not a node of this URL: its nodes are {', '.join(labels)}")
    results = admin.rejoin(url, {labels.index(node) for node in chosen}, wait, durable)
    return {labels[index]: result for index, result in sorted(results.items())}


def _admin() -> Any:
    """The module, imported on first use."""
    return engines.load("redlock.admin")
