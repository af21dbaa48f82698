"""Operations on a name without holding it: inspect, list, break."""

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
"""The time limit for issuing the number that fences off the broken attempts."""


async def inspect(quorum: Quorum, name: str) -> Snapshot:
    views = await _views_of(quorum, name, _is_clear)
    return Snapshot(record_of(views, quorum.size, quorum.size - len(views), quorum.stretch), 0.0)


async def _views_of(
    quorum: Quorum, name: str, enough: Callable[[list[View], int], bool] = lambda views, size: False
) -> list[View]:
    """The views of a majority at least, and of all nodes that answer in time unless fewer are enough."""
    await join(quorum)
    batch: Batch = ((name, node.Inspect()),)
    answers = await quorum.ask(batch, lambda answers: enough(_views(answers), quorum.size))
    views = _views(answers)
    if len(views) < quorum.majority:
        raise await too_few_nodes(quorum, column(answers, 0), len(views))
    return views


def _views(answers: Answers) -> list[View]:
    return [reply for reply in column(answers, 0).values() if isinstance(reply, View)]


def _is_clear(views: list[View], size: int) -> bool:
    """Whether nodes that have not answered cannot change the holders."""
    if len(views) < majority(size):
        return False
    return all(each.nodes >= majority(size) for each in seen_claims(views, size, size - len(views)))


async def list_names(quorum: Quorum, prefix: str) -> list[tuple[str, Snapshot]]:
    """Every name that a majority holds, or may hold."""
    await join(quorum)
    found: dict[str, list[View]] = {}
    complete = 0
    pages_of_nodes, replies = await _all_pages(quorum, prefix)
    for pages in pages_of_nodes:
        complete += 1
        # A name can be on two pages of one node. It counts once.
        shown = {name: View(record, page.now) for page in pages for name, record in page.found}
        for name, view in shown.items():
            found.setdefault(name, []).append(view)
    if complete < quorum.majority:
        raise await too_few_nodes(quorum, replies, complete)
    snapshots = []
    for name in sorted(found, key=str.encode):
        record = record_of(found[name], quorum.size, quorum.size - complete, quorum.stretch)
        if record.holders:
            snapshots.append((name, Snapshot(record, 0.0)))
    return snapshots


async def _all_pages(quorum: Quorum, prefix: str) -> tuple[list[list[NamePage]], dict[int, Any]]:
    """The pages of each node that answered for all of them, and the last answer of each node."""
    cursors = dict.fromkeys(range(quorum.size), "")
    pages: dict[int, list[NamePage]] = {each: [] for each in cursors}
    complete = []
    replies: dict[int, Any] = {}
    while cursors:
        asks: dict[int, Batch] = {each: (("", node.List(prefix, at)),) for each, at in cursors.items()}
        wanted = len(asks)

        def enough(answers: Answers, wanted: int = wanted) -> bool:
            return len(answers) >= wanted

        answers = column(await quorum.ask_each(asks, enough), 0)
        for each in list(cursors):
            replies[each] = reply = answers.get(each)
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
    """Replace all claims on a majority by a claim with a new number, then release that claim."""
    views = await _views_of(quorum, name)
    unseen = quorum.size - len(views)
    victims = [each for each in _all_seen(views, quorum) if _is_meant(each, ask.token, quorum, unseen)]
    if not victims:
        return Broken(None, ())
    attempt = Attempt(name, await Nonce())
    owner = attempt.begin(quorum.next_try())
    owners = tuple(victim.owner for victim in victims)
    kept_us = quorum.node_ttl_us(BREAKER_SECONDS)
    attempt.terms = (kept_us, 0, quorum.client, "break_lock", "", owners, ask.reason, 0)
    acquisition = Acquisition(attempt, owner, BREAKER_SECONDS)
    try:
        await run_round(quorum, [acquisition])
    finally:  # also after an error or an interrupt: no waiter must wait for the breaker
        if attempt.owner:
            await release_failed(quorum, (acquisition,))
    if not isinstance(acquisition.verdict, Counted):
        raise OutcomeUnknown("it was broken on too few nodes, or another client acquired it meanwhile")
    for victim in victims:
        if victim.claim.client == quorum.client:
            await Notify(victim.owner.rpartition(".")[0])  # other clients learn it at their next renewal
    held = [each for each in victims if each.nodes + unseen >= quorum.majority]
    return Broken(acquisition.verdict.token, holders_of(held, quorum.stretch))


def _all_seen(views: list[View], quorum: Quorum) -> list[SeenClaim]:
    """Every attempt with a claim, also on a minority of the nodes, where it blocks others."""
    return seen_claims(views, quorum.size, quorum.size)


def _is_meant(seen: SeenClaim, token: int | None, quorum: Quorum, unseen: int) -> bool:
    return token is None or (seen.token == token and seen.issued_by + unseen >= quorum.majority)
