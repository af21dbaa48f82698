"""What can be asked about a name, or done to it, without holding it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ...core.effects import Nonce, Notify, OutcomeUnknown
from ...rules import node
from ...rules.node import NamePage, View
from ...rules.requests import Break, Broken, Reply, Snapshot
from .acquisition import Acquisition, release_failed, run_round
from .effects import Answers, Batch
from .membership import join, too_few_nodes
from .state import Attempt, Quorum, column
from .tally import Counted, majority
from .views import SeenClaim, holders_of, record_of, seen_claims

__all__ = ["break_lock", "inspect", "list_names"]

BREAKER_SECONDS: Final = 10.0
"""How long the number that fences off the broken may take to be issued."""


async def inspect(quorum: Quorum, name: str) -> Snapshot:
    views = await _look(quorum, name, _is_clear)
    return Snapshot(record_of(views, quorum.size, quorum.size - len(views), quorum.stretch), 0.0)


async def _look(
    quorum: Quorum, name: str, enough: Callable[[list[View], int], bool] = lambda views, size: False
) -> list[View]:
    """What the nodes show: a majority at least, and all that answer in time unless fewer are enough."""
    await join(quorum)
    batch: Batch = ((name, node.Inspect()),)
    answers = await quorum.ask(batch, lambda told: enough(_views(told), quorum.size))
    views = _views(answers)
    if len(views) < quorum.majority:
        raise await too_few_nodes(quorum, column(answers, 0), len(views))
    return views


def _views(answers: Answers) -> list[View]:
    return [reply for reply in column(answers, 0).values() if isinstance(reply, View)]


def _is_clear(views: list[View], size: int) -> bool:
    """Whether nodes that have not answered cannot change who holds it."""
    if len(views) < majority(size):
        return False
    return all(each.nodes >= majority(size) for each in seen_claims(views, size, size - len(views)))


async def list_names(quorum: Quorum, prefix: str) -> list[tuple[str, Snapshot]]:
    """Every name that a majority holds, or may hold."""
    await join(quorum)
    found: dict[str, list[View]] = {}
    complete = 0
    told_all, replies = await _all_pages(quorum, prefix)
    for pages in told_all:
        complete += 1
        # A name can be on two pages of a node; it is one node that shows it.
        shown = {name: View(record, page.now) for page in pages for name, record in page.found}
        for name, view in shown.items():
            found.setdefault(name, []).append(view)
    if complete < quorum.majority:
        raise await too_few_nodes(quorum, replies, complete)
    told = []
    for name in sorted(found, key=str.encode):
        stands = record_of(found[name], quorum.size, quorum.size - complete, quorum.stretch)
        if stands.holders:
            told.append((name, Snapshot(stands, 0.0)))
    return told


async def _all_pages(quorum: Quorum, prefix: str) -> tuple[list[list[NamePage]], dict[int, Any]]:
    """The pages of each node that told all of them, and what each node said last."""
    cursors = dict.fromkeys(range(quorum.size), "")
    pages: dict[int, list[NamePage]] = {each: [] for each in cursors}
    complete = []
    replies: dict[int, Any] = {}
    while cursors:
        asks: dict[int, Batch] = {each: (("", node.List(prefix, at)),) for each, at in cursors.items()}
        wanted = len(asks)

        def enough(answers: Answers, wanted: int = wanted) -> bool:
            return len(answers) >= wanted

        told = column(await quorum.ask_each(asks, enough), 0)
        for each in list(cursors):
            replies[each] = reply = told.get(each)
            if not isinstance(reply, NamePage):
                del cursors[each]
                continue
            pages[each].append(reply)
            cursors[each] = reply.cursor
            if not reply.cursor:
                del cursors[each]
                complete.append(pages[each])
    return complete, replies


async def break_lock(quorum: Quorum, name: str, ask: Break) -> Reply:
    """Take it from whoever has it, on a majority, with a number that the majority issues to nobody else."""
    views = await _look(quorum, name)
    unseen = quorum.size - len(views)
    victims = [each for each in _all_seen(views, quorum) if _is_meant(each, ask.token, quorum, unseen)]
    if not victims:
        return Broken(None, ())
    attempt = Attempt(name, await Nonce())
    owner = attempt.begin(quorum.next_try())
    owners = tuple(victim.owner for victim in victims)
    kept_us = quorum.node_ttl_us(BREAKER_SECONDS)
    attempt.terms = (kept_us, 0, quorum.client, "break_lock", "", owners, ask.reason, 0)
    taking = Acquisition(attempt, owner, BREAKER_SECONDS)
    try:
        await run_round(quorum, [taking])
    finally:  # whatever came of it, also if we are interrupted: nobody is to wait for the breaker
        if attempt.owner:
            await release_failed(quorum, (taking,))
    if not isinstance(taking.verdict, Counted):
        raise OutcomeUnknown("it was broken on too few nodes, or somebody else took it meanwhile")
    for victim in victims:
        if victim.claim.client == quorum.client:
            await Notify(victim.owner.rpartition(".")[0])  # others find out when they next renew
    held = [each for each in victims if each.nodes + unseen >= quorum.majority]
    return Broken(taking.verdict.token, holders_of(held, quorum.stretch))


def _all_seen(views: list[View], quorum: Quorum) -> list[SeenClaim]:
    """Also those who have it on a few nodes only, and block others there."""
    return seen_claims(views, quorum.size, quorum.size)


def _is_meant(seen: SeenClaim, token: int | None, quorum: Quorum, unseen: int) -> bool:
    return token is None or (seen.token == token and seen.issued_by + unseen >= quorum.majority)
