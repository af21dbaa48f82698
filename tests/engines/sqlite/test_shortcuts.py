"""Shortcuts: what is decided on the text of a record is what the rule decides on the record."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType

import pytest

from holdfast.engines.sqlite import shortcuts
from holdfast.engines.sqlite.codec import encode
from holdfast.rules import handoff
from holdfast.rules.handoff import CAME_SECONDS, successor_of
from holdfast.rules.record import EMPTY, MAX_TOKEN, PATIENCE_SECONDS, Record
from holdfast.rules.requests import Acquire, Done, Handoff, Queued, Release, Request, Withdraw
from rules.moves import KINDS, aimed, long_moves
from rules.test_handoff import ask_for, queue_of
from support.thorough import THOROUGH

pytestmark = pytest.mark.timeless

WALL = 5_000_000
SEEDS = 60 if THOROUGH else 20

MUTANTS = {
    "whichever client releases it, it is handed on": ('f"[{quoted(nonce)},"', '"["'),
    "one who holds it no longer hands it on": (" or _scan(held, 0)[0][6] <= now:", ":"),
    "the successor gets another token": ("(token, now - since)", "(token - 1, now - since)"),
    "the successor does not get the age of its place": ("(token, now - since)", "(token, 0.0)"),
    "one who came long ago is handed it": ("now - since > CAME_SECONDS", "False"),
    "the number is that of the last grant": (") + 1, wall_us)", "), wall_us)"),
    "the clock is no floor for the number": ("max(int(before[len(_LOCK) : -2]) + 1, wall_us)", "7"),
    "the second in the queue gets lost": ("others[1:]", "others[others.index(']]') + 4 :]"),
    "the last in the queue gets lost": ("if others == ENDING:", "if True:"),
    "an empty queue is not empty": ("if others == ENDING:", "if False:"),
    "one who asks again joins twice": ('or f"[{quoted(ask.nonce)}," in text', ""),
    "one who only tries joins": ("or not ask.wait", ""),
    "one joins those whose time is over": ("if next_at <= now or", "if"),
    "only the holder is in the way": ("holder[1]: None, last[1]: None", "holder[1]: None"),
}


class Unlike(AssertionError):
    """The shortcut and the rule differ."""


def compare(module: ModuleType, record: Record, request: Request, now: float, wall_us: int) -> int:
    """How many shortcuts could be taken."""
    text, step = encode(record), handoff.apply(record, request, now, wall_us)
    if isinstance(request, Release):
        handed = module.hand_over(text, request.nonce, now, wall_us)
        if handed is None:
            return 0
        agrees = (step.reply, step.wake, encode(step.record)) == (Done(), (handed.successor,), handed.text)
        _must(agrees and successor_of(request, step) == handed.successor.client, handed, step)
        return 1
    if not isinstance(request, Acquire):
        return 0
    joined = module.join_queue(text, request, now)
    if joined is None:
        return 0
    told, reply = joined.reply, step.reply
    _must(isinstance(reply, Queued) and joined.text == encode(step.record) and not step.wake, joined, step)
    assert isinstance(reply, Queued)
    _must(told._replace(poll_after=0.0) == reply._replace(poll_after=0.0), told, reply)
    # Looking too early is looking once more; too late would be too late.
    _must(0.0 <= told.poll_after <= reply.poll_after + 1e-6, told, reply)
    return 1


def _must(agrees: bool, short: object, rule: object) -> None:
    if not agrees:
        raise Unlike(f"{short} instead of {rule}")


def everything(record: Record, kind: str) -> Iterator[Request]:
    """What those who are there, and one who is not, may ask for."""
    there = [*(holder.nonce for holder in record.holders), *(waiter.nonce for waiter in record.queue)]
    for nonce in (*there, "new"):
        wants = ask_for(0, kind)._replace(nonce=nonce, client=nonce[0])
        yield from (Release(nonce), wants, wants._replace(wait=False), wants._replace(fair=False))
        yield from (wants._replace(max_hold=9.0), wants._replace(kind="rwlock", mode="read"))


def compare_along(module: ModuleType, kind: str, seed: int) -> int:
    """Every client requests everything, at every step of a generated sequence."""
    record, now, taken = EMPTY, 1000.0, 0
    for move in long_moves(kind, seed, 40):
        now += move.pause
        for request in everything(record, kind):
            taken += compare(module, record, request, now, move.wall_us)
        record = handoff.apply(record, aimed(move, record), now, move.wall_us, move.dead).record
    return taken


def compare_in_a_crowd(module: ModuleType, seed: int) -> int:
    """The same where many come and go quickly."""
    chance = random.Random(seed)
    record, now, taken = EMPTY, 1000.0, 0
    for number in range(40):
        now += chance.choice((0.0, 0.001, 0.01, 0.03, 0.06))
        wall_us = chance.choice((0, WALL + number, 10 * WALL))
        for request in everything(record, "lock"):
            taken += compare(module, record, request, now, wall_us)
        ttl, fair = chance.choice((0.05, 0.5, 30.0)), chance.random() > 0.1
        wanted: Request = ask_for(number)._replace(
            ttl=ttl, fair=fair, max_hold=chance.choice((None,) * 5 + (4.0,))
        )
        there = [*(holder.nonce for holder in record.holders), *(waiter.nonce for waiter in record.queue)]
        if there and chance.random() < 0.3:
            wanted = chance.choice((Release(there[0]), Release(there[0]), Withdraw(chance.choice(there))))
        record = handoff.apply(record, wanted, now, wall_us).record
    return taken


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_what_the_rule_says(kind: str) -> None:
    taken = sum(compare_along(shortcuts, kind, seed) for seed in range(5 * SEEDS))
    assert taken > 8 * SEEDS if kind == "lock" else taken == 0


def test_they_are_what_the_rule_says_in_a_crowd() -> None:
    assert sum(compare_in_a_crowd(shortcuts, seed) for seed in range(2 * SEEDS)) > 16 * SEEDS


def is_caught(module: ModuleType) -> bool:
    try:
        for seed in range(SEEDS):
            compare_in_a_crowd(module, seed)
            compare_along(module, "lock", seed)
    except Unlike:
        return True
    return False


@pytest.mark.parametrize("what", MUTANTS)
def test_the_comparison_catches(what: str) -> None:
    right, wrong = MUTANTS[what]
    source = inspect.getsource(shortcuts)
    assert right in source
    broken = ModuleType("holdfast.engines.sqlite.broken")
    broken.__package__ = "holdfast.engines.sqlite"
    exec(compile(source.replace(right, wrong), "broken.py", "exec"), broken.__dict__)  # noqa: S102 - our own text
    assert is_caught(broken), f"nothing noticed that {what}"


def test_between_clients_that_want_the_same_lock_each_step_has_one() -> None:
    asked = [ask_for(number) for number in range(8)]
    record = queue_of(*asked[:2])
    for ask in asked[2:]:
        joined = shortcuts.join_queue(encode(record), ask, 100.0)
        assert joined is not None
        record = handoff.apply(record, ask, 100.0, WALL).record
        assert joined.text == encode(record)
    for holder, successor in pairwise(asked):
        handed = shortcuts.hand_over(encode(record), holder.nonce, 100.0625, WALL)
        assert handed is not None
        assert handed.successor.nonce == successor.nonce
        record = handoff.apply(record, Release(holder.nonce), 100.0625, WALL).record
        assert handed.successor.handed == Handoff(record.token, 0.0625)
        assert handed.text == encode(record)


def test_where_it_takes_a_closer_look_there_is_none() -> None:
    record = queue_of(ask_for(0), ask_for(1), ask_for(2))
    text = encode(record)
    assert shortcuts.hand_over(text, "n-0", 100.01 + CAME_SECONDS, WALL) is None
    assert shortcuts.hand_over(encode(record._replace(token=MAX_TOKEN - 1)), "n-0", 100.0, WALL) is None
    assert shortcuts.join_queue(text, ask_for(3), 100.0 + PATIENCE_SECONDS) is None
    assert shortcuts.join_queue(encode(queue_of(ask_for(0))), ask_for(3), 100.0) is None


@pytest.mark.parametrize("place", range(6))
@pytest.mark.parametrize("junk", ["", "[]", "null", '["n-0",', '["n-0",1]', "x" * 50])
def test_texts_that_make_no_sense_have_none(place: int, junk: str) -> None:
    lines = encode(queue_of(ask_for(0), ask_for(1), ask_for(2))).split("\n")
    lines[place] = junk
    text = "\n".join(lines)
    shortcuts.hand_over(text, "n-0", 100.0, WALL)
    shortcuts.join_queue(text, ask_for(3), 100.0)
