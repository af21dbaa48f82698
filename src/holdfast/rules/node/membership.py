"""How a node becomes one of a set: each step is a comparison and a change of its mark, at once.

A set is *primed* before it is *started*, on all nodes, so that clients who initialise it at the same time, or
one that dies half-way, leave nothing that could be taken for a node that forgot.
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
    """Who are you, and what do you remember?"""


class NodeDescription(NamedTuple):
    """What a node says of itself."""

    run_id: str
    """The server's life: another one since every start."""
    mark: Mark
    durable: bool
    """Its own settings say that what it answered survives its death."""
    complaint: str = ""
    """Why it cannot be a node at all, whatever its mark says."""


class Prime(NamedTuple):
    """To be part of this set; only a node that never started, and whose mark is still as it was seen."""

    mark: str
    was: str


class Start(NamedTuple):
    """All nodes are primed: issue numbers from now on."""

    mark: str


class Trust(NamedTuple):
    """A new life with all memories of the last one, whose mark this was."""

    mark: str
    was: str


class Rejoin(NamedTuple):
    """It is about to be told all fences."""

    mark: str


class Admit(NamedTuple):
    """It has waited and has been told all fences since it began to rejoin: it may issue numbers again."""

    mark: str
    longest: int


class ListFences(NamedTuple):
    """A page of all names of all namespaces with their fences; the first cursor is empty."""

    cursor: str = ""


class FencePage(NamedTuple):
    """``cursor`` is where the next page begins; empty: this was the last."""

    fences: tuple[tuple[str, int], ...]
    cursor: str


class RaiseFences(NamedTuple):
    """Never issue these numbers, nor any below, for these names."""

    fences: tuple[tuple[str, int], ...]


class Marked(NamedTuple):
    """The mark as it stands now."""

    mark: Mark


MembershipRequest = Prime | Start | Trust | Rejoin | Admit
"""Each names the mark that the node is to have; it must be that of the server's present life."""


def change_mark(mark: Mark, request: MembershipRequest, run_id: str) -> Mark:
    """The mark after the request; the same where the request no longer fits what is there, or was meant for
    another life of the server than ``run``."""
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
