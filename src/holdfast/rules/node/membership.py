"""How a node becomes a member of a set: each step compares and changes its mark atomically.

All nodes of a set are *primed* before one is *started*. So clients that initialise the set at the same time,
or a client that dies half-way, leave no node that looks as if it had lost its data.
"""

from __future__ import annotations

from typing import NamedTuple

from .values import Mark

__all__ = [
    "Admit",
    "DescribeNode",
    "FencePage",
    "ListFences",
    "Marked",
    "MembershipRequest",
    "NodeDescription",
    "Prime",
    "RaiseFences",
    "Rejoin",
    "Start",
    "Trust",
    "change_mark",
]


class DescribeNode(NamedTuple):
    """Ask for a ``NodeDescription``."""


class NodeDescription(NamedTuple):
    """What a node reports about itself."""

    run_id: str
    """The run id of the server: another one after every start."""
    mark: Mark
    durable: bool
    """Its own settings say that a crash loses no answer."""
    complaint: str = ""
    """Why it cannot be a node, whatever its mark says."""


class Prime(NamedTuple):
    """Prime a node for this set. Only if it never started, and its mark is still as it was read."""

    mark: str
    was: str


class Start(NamedTuple):
    """All nodes are primed: start to issue numbers."""

    mark: str


class Trust(NamedTuple):
    """Renew the mark after a restart that lost no data. ``was``: the mark of the earlier run."""

    mark: str
    was: str


class Rejoin(NamedTuple):
    """Start to rejoin: all fences follow."""

    mark: str


class Admit(NamedTuple):
    """The node has waited and got all fences since it started to rejoin: it may issue numbers again."""

    mark: str
    longest: int


class ListFences(NamedTuple):
    """Ask for a page of all names of all namespaces with their fences; the first cursor is empty."""

    cursor: str = ""


class FencePage(NamedTuple):
    """``cursor``: where the next page begins; empty: this is the last page."""

    fences: tuple[tuple[str, int], ...]
    cursor: str


class RaiseFences(NamedTuple):
    """Never issue these numbers, nor smaller ones, for these names."""

    fences: tuple[tuple[str, int], ...]


class Marked(NamedTuple):
    """The mark after the request."""

    mark: Mark


MembershipRequest = Prime | Start | Trust | Rejoin | Admit
"""Each has the mark that the node is to get, which must end with the server's run id."""


def change_mark(mark: Mark, request: MembershipRequest, run_id: str) -> Mark:
    """The mark after the request. It stays the same where the request does not fit the current mark, or was
    meant for another run of the server than ``run_id``."""
    if request.mark.rpartition("/")[2] != run_id:
        return mark
    if isinstance(request, Prime):
        fits = not mark.ready and mark.primed == request.was
        return mark._replace(primed=request.mark) if fits else mark
    if isinstance(request, Start):
        fits = not mark.ready and mark.primed == request.mark
        return mark._replace(ready=request.mark) if fits else mark
    if isinstance(request, Trust):
        return mark._replace(ready=request.mark) if mark.ready == request.was else mark
    if isinstance(request, Rejoin):
        return mark._replace(rejoins=request.mark)
    if mark.rejoins != request.mark:
        return mark
    return Mark(request.mark, request.mark, "", max(mark.longest, request.longest))
