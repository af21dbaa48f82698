"""The rule and its translation side by side: the same requests at the same moments, and everything compared.

A sequence is first run through the Python rules, then sent to the server in one write, since what is asked
next depends on the rule's record alone. The scripts are the shipped ones, but that the test sets their clock.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hiredis import ReplyError

from engines.redis.stored import record_of
from engines.redis.wire import Wire, plain
from holdfast.engines.redis.codec import (
    decode,
    decode_all,
    encode,
    encode_in_order,
    encode_packed,
    encode_renew_batch,
    pack,
)
from holdfast.engines.redis.keys import Keyspace, key_of, value_key_of
from holdfast.engines.redis.scripts import NAMES, assemble
from holdfast.engines.resp.scripts import Script, inline_constants, make_script
from holdfast.lab.servers import Redis
from holdfast.rules import handoff
from holdfast.rules.queueing import blockers, poll_after
from holdfast.rules.record import EMPTY, RETENTION_SECONDS, Record
from holdfast.rules.requests import (
    Acquire,
    Break,
    Inspect,
    Queued,
    Refresh,
    Release,
    Renew,
    Reply,
    Request,
    Snapshot,
    Wake,
    Watch,
    Withdraw,
)
from holdfast.rules.transitions import Step, apply, apply_in_order
from rules.moves import LIMIT, MODES, Move, aimed, long_moves

NAMES_USED = ("x", "x", "x", "y{t}", "ž")
BEGINNING = 1_790_000_000.123457
"""An odd time, so that sums of it are rounded."""
CLOCK = """
local clock = redis.call('MGET', 'clock:now', 'clock:wall_us')
local now, wall_us = tonumber(clock[1]), tonumber(clock[2])
"""
END = b"#"
SLACK_MS = 20_000
"""How long a sequence may take on a busy machine, as seen by what remains of a record's life."""

Change = Callable[[str], str]
"""Makes another text of the text of a script."""


class Deed(NamedTuple):
    """What is asked at one moment: one step, or several as a batch or in order."""

    now: float
    wall_us: int
    what: str
    steps: tuple[tuple[str, Request], ...]
    stop: bool = False


class Told(NamedTuple):
    """What came of a deed."""

    replies: list[Reply]
    records: dict[str, Record]
    """Of the names that it concerned."""
    wakes: list[Wake]
    lives_ms: dict[str, int]
    """How long the record is kept, where it was stored."""


def scripts_with(change: Change = lambda text: text) -> dict[str, Script]:
    """The shipped scripts with a clock that the test sets, and changed further."""
    scripts = {}
    for name in NAMES:
        text = assemble(name)
        assert text.count(assemble("clock")) == 1, "every script reads the clock once"
        scripts[name] = make_script(name, inline_constants(change(text.replace(assemble("clock"), CLOCK))))
    return scripts


class Rules:
    """The rules themselves, over several names."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self._lives_ms: dict[str, int] = {}
        """How long each is kept, as of when that was last said."""

    def do(self, deed: Deed) -> Told:
        before = dict(self.records)
        steps = self._steps(deed)
        for (name, _), step in zip(deed.steps, steps, strict=False):
            self.records[name] = step.record
        told = [_without_wants(step.reply) for step in steps]
        if deed.what == "renew_batch":
            told = [self._told_at_last(deed, place, one) for place, one in enumerate(told)]
        records = {name: self.records.get(name, EMPTY) for name in names_of(deed)}
        changed = {name: r for name, r in records.items() if r is not before.get(name, EMPTY)}
        lives = {name: lives_ms(record, deed.now) for name, record in changed.items()}
        if is_short_release(deed, before):
            lives = {name: self._lives_ms[name] for name in lives}
        self._lives_ms |= lives
        return Told(told, records, [_message_to(wake) for step in steps for wake in step.wake], lives)

    def _steps(self, deed: Deed) -> list[Step]:
        known = {name: self.records.get(name, EMPTY) for name, _ in deed.steps}
        return apply_in_order(known, deed.steps, deed.now, deed.wall_us, deed.stop, rule=handoff.apply)

    def _told_at_last(self, deed: Deed, place: int, one: Reply) -> Reply:
        """In a batch, positions are reported once all have been refreshed."""
        if not isinstance(one, Queued):
            return one
        settled = apply(self.records[deed.steps[place][0]], Inspect(), deed.now, deed.wall_us).reply
        assert isinstance(settled, Snapshot)
        record = settled.record
        return Queued(
            one.position, poll_after(record, one.position, deed.now), blockers(record, one.position)
        )


def _without_wants(reply: Reply) -> Reply:
    """Who looks is not told what those want who wait."""
    if not isinstance(reply, Snapshot):
        return reply
    queue = tuple(waiter._replace(wants=None) for waiter in reply.record.queue)
    return reply._replace(record=reply.record._replace(queue=queue))


def _message_to(wake: Wake) -> Wake:
    """A handoff carries the token, and how long its waiter had waited."""
    if wake.handed is None:
        return wake
    token, age = wake.handed
    return Wake(wake.client, f"{wake.nonce}\n{token}\n{age:.6f}")


def lives_ms(record: Record, now: float) -> int:
    ends = [now, *(h.expires_at for h in record.holders), *(w.expires_at for w in record.queue)]
    ends += [e.forget_at for e in record.ended]
    ends += [w.expires_at for w in record.watchers]
    return int((max(ends) - now + RETENTION_SECONDS) * 1000)


def is_short_release(deed: Deed, before: Mapping[str, Record]) -> bool:
    """Of the only one in the record: that is kept for as long as it would have been without."""
    ((name, request), *more) = deed.steps
    record = before.get(name, EMPTY)
    if more or deed.what != "apply" or not isinstance(request, Release) or request.linger:
        return False
    if len(record.holders) != 1 or record.queue or record.ended or record.watchers:
        return False
    return record.holders[0].nonce == request.nonce and record.holders[0].expires_at > deed.now


class Translation:
    """The same on a server."""

    _spaces = itertools.count()

    def __init__(self, server: Redis, scripts: Mapping[str, Script]) -> None:
        self._scripts = dict(scripts)
        self._wire = Wire(server, scripts)
        self._ear = Wire(server)
        self._ear.ask(b"PSUBSCRIBE", b"holdfast:*:wake:*")

    def close(self) -> None:
        self._wire.close()
        self._ear.close()

    def do_all(self, deeds: Sequence[Deed]) -> list[Told]:
        """In names that nobody used before."""
        space = Keyspace(f"twins {next(self._spaces)}")
        space.scripts = self._scripts
        sent: list[bytes] = []
        for deed in deeds:
            sent += self._sent(space, deed)
        raw = iter(self._wire.ask_all(sent))
        told = [self._read(deed, raw) for deed in deeds]
        return [
            one._replace(wakes=received)
            for one, received in zip(told, self._received(space, deeds), strict=True)
        ]

    def _sent(self, space: Keyspace, deed: Deed) -> list[bytes]:
        clock = plain(b"MSET", b"clock:now", repr(deed.now).encode(), b"clock:wall_us", b"%d" % deed.wall_us)
        looks = []
        for name in names_of(deed):
            looks += [
                plain(b"GET", key_of(space, name)),
                plain(b"GET", value_key_of(space, name)),
                plain(b"PTTL", key_of(space, name)),
            ]
        return [clock, self._call(space, deed), *looks, plain(b"PUBLISH", space.channel + END, b"")]

    def _call(self, space: Keyspace, deed: Deed) -> bytes:
        if deed.what == "apply_in_order":
            return pack(encode_in_order(space, deed.steps, deed.stop))
        if deed.what == "renew_batch":
            (batch,) = encode_renew_batch(space, deed.steps)
            assert batch.places == tuple(range(len(deed.steps)))
            return pack(batch.command)
        ((name, request),) = deed.steps
        quick = encode_packed(space, name, request)
        assert quick == pack(encode(space, name, request))
        return quick

    def _read(self, deed: Deed, raw: Iterable[Any]) -> Told:
        parts = iter(raw)
        next(parts)
        answer = next(parts)
        one = deed.what == "apply"
        told = [decode(deed.steps[0][1], answer)] if one else decode_all(deed.steps, answer)
        records, lives = {}, {}
        for name in names_of(deed):
            records[name] = record_of(next(parts), next(parts))
            lives[name] = next(parts)
        next(parts)
        return Told(told, records, [], lives)

    def _received(self, space: Keyspace, deeds: Sequence[Deed]) -> list[list[Wake]]:
        received: list[list[Wake]] = []
        for _ in deeds:
            wakes: list[Wake] = []
            while (message := self._message(space))[0] != END.decode():
                wakes.append(Wake(*message))
            received.append(wakes)
        return received

    def _message(self, space: Keyspace) -> tuple[str, str]:
        while True:
            _, _, channel, nonce = self._ear.read()
            if channel.startswith(space.channel):
                return channel.removeprefix(space.channel).decode(), nonce.decode()


def names_of(deed: Deed) -> list[str]:
    return sorted({name for name, _ in deed.steps})


# --- what is asked ------------------------------------------------------------------------------


def asked(move: Move, record: Record) -> Request:
    """The request of a move, with texts that are harder to carry, and numbers that are harder to keep."""
    request = aimed(move, record)
    if isinstance(request, Acquire):
        metadata = {} if request.nonce[-1] == "0" else {"ключ": 'значение "☃" \\', "\n": request.nonce}
        return request._replace(owner=f"hôte/1/{request.nonce}", metadata=metadata, ttl=request.ttl * 1.1)
    if isinstance(request, Renew):
        return request._replace(ttl=request.ttl / 3)
    if isinstance(request, Break) and request.token == 1 and record.holders:
        return request._replace(token=record.holders[-1].token)
    return request


def deeds_of(moves: Sequence[Move], seed: int = 0, alone: bool = True) -> list[Deed]:
    """The moves as deeds; unless ``alone``, of several names, some of them together."""
    chance, rules = random.Random(seed), Rules()
    now, deeds, waiting_moves = BEGINNING, [], iter(moves)
    for move in waiting_moves:
        now += move.pause
        wall_us = 2**53 if chance.random() < 0.02 else int(BEGINNING * 1_000_000) + move.wall_us
        name = "x" if alone else chance.choice(NAMES_USED)
        step = name, asked(move, rules.records.get(name, EMPTY))
        deed = Deed(now, wall_us, "apply", (step,))
        if not alone and chance.random() < 0.2:
            deed = deed._replace(what="renew_batch", steps=batch(rules, chance))
        elif not alone and chance.random() < 0.2:
            more = [
                (other, asked(another, rules.records.get(other, EMPTY)))
                for other, another in zip(chance.choices(NAMES_USED, k=3), waiting_moves, strict=False)
            ]
            deed = deed._replace(what="apply_in_order", steps=(step, *more), stop=chance.random() < 0.7)
        rules.do(deed)
        deeds.append(deed)
    return deeds


def batch(rules: Rules, chance: random.Random) -> tuple[tuple[str, Request], ...]:
    """What a keeper would ask: first the renewals, then the refreshes; and some for what is not there."""
    renewals: list[tuple[str, Request]] = []
    refreshes: list[tuple[str, Request]] = []
    for name, record in rules.records.items():
        renewals += [(name, Renew(h.nonce, chance.choice((0.1, 30.0)))) for h in record.holders]
        refreshes += [(name, Refresh(waiter.nonce)) for waiter in record.queue]
        refreshes += [(name, Refresh(watcher.nonce)) for watcher in record.watchers]
    renewals.append((chance.choice(NAMES_USED), Renew("a9", 10.0)))
    refreshes.append((chance.choice(NAMES_USED), Refresh("a9")))
    chance.shuffle(renewals)
    chance.shuffle(refreshes)
    return (*renewals[:6], *refreshes[:8])


def random_deeds(kind: str, seed: int) -> list[Deed]:
    """A long sequence; every other one about several names."""
    return deeds_of(long_moves(kind, seed), seed, alone=seed % 2 == 0)


def crowded_deeds(kind: str) -> list[Deed]:
    """More who wait, and more attempts that ended, than a random sequence ever brings together."""
    mode = MODES[kind][-1]
    ask = Acquire("", "a", "owner", kind, mode, 10.0, True, limit=LIMIT if kind == "semaphore" else 0)
    waiting = [ask._replace(nonce=f"a{number}", client=f"c{number % 7}") for number in range(120)]
    steps: list[Request] = [
        *waiting,
        *[Withdraw(one.nonce, 60.0) for one in waiting[20:]],
        Break(None, "test"),
    ]
    steps += [Inspect(), *[Refresh(one.nonce) for one in waiting[:20]], waiting[15]._replace(fair=False)]
    steps += [Release("a15"), *waiting[:10]]
    steps += [Release(one.nonce) for one in waiting[:10]]
    wall_us = int(BEGINNING * 1_000_000)
    deeds = [
        Deed(BEGINNING + at / 1000, wall_us + at, "apply", (("x", one),)) for at, one in enumerate(steps)
    ]
    refreshes = tuple([("x", Refresh(one.nonce)) for one in waiting])
    return [
        *deeds,
        Deed(BEGINNING + 1, wall_us, "renew_batch", refreshes),
        Deed(BEGINNING + 4, 0, "renew_batch", refreshes),
    ]


def passing_deeds(seed: int) -> list[Deed]:
    """A lock that goes from hand to hand while others wait: mostly at once, sometimes late, once too late.

    Some with one who watches and attempts that were ended, some at the end of all tokens.
    """
    chance, rules, numbers = random.Random(seed), Rules(), itertools.count()
    ask = Acquire("", "", "owner", "lock", "exclusive", 0.0, True)
    now, deeds = BEGINNING, []
    asks: dict[str, Acquire] = {}
    for _ in range(80):
        now += chance.choice((*[0.001] * 6, 0.5, 1.9, 2.1, 3.2))
        record = rules.records.get("x", EMPTY)
        request: Request
        if record.queue and seed % 4 == 3 and chance.random() < 0.2:
            request = Release(record.queue[0].nonce, 60.0)
        elif record.queue and chance.random() < 0.35:
            request = asks[chance.choice(record.queue[:2]).nonce]
        elif record.holders and chance.random() < 0.5:
            request = Release(record.holders[0].nonce)
        elif record.queue and chance.random() < 0.4:
            request = Refresh(chance.choice(record.queue).nonce)
        elif record.queue and seed % 4 == 1 and chance.random() < 0.2:
            request = Watch("w1", "w")
        else:
            client, ttl = chance.choice("abcd"), chance.choice((3.0, 30.0))
            request = ask._replace(nonce=f"{client}{next(numbers)}", client=client, ttl=ttl)
            asks[request.nonce] = request
        wall_us = int(now * 1_000_000) - chance.choice((0, 0, 0, 10_000_000))
        if seed % 4 == 2 and chance.random() < 0.1:
            wall_us = 2**53
        deeds.append(Deed(now, wall_us, "apply", (("x", request),)))
        rules.do(deeds[-1])
    return deeds


# --- comparing ----------------------------------------------------------------------------------


def compare(translation: Translation, deeds: Sequence[Deed]) -> None:
    rules = Rules()
    expected = [rules.do(deed) for deed in deeds]
    for deed, should, told in zip(deeds, expected, translation.do_all(deeds), strict=True):
        assert told.replies == should.replies, deed
        assert told.records == should.records, deed
        if deed.what == "renew_batch":
            assert Counter(told.wakes) == Counter(should.wakes), deed
        else:
            assert told.wakes == should.wakes, deed
        for name, ms in should.lives_ms.items():
            assert ms - SLACK_MS <= told.lives_ms[name] <= ms + 2, deed


def differs(translation: Translation, deeds: Sequence[Deed]) -> bool:
    try:
        compare(translation, deeds)
    except (AssertionError, ReplyError):
        return True
    return False


def shortest(translation: Translation, deeds: Sequence[Deed]) -> list[Deed]:
    """What is left of a differing sequence without the deeds that do not matter."""
    left, index = list(deeds), 0
    while index < len(left):
        without = left[:index] + left[index + 1 :]
        if differs(translation, without):
            left = without
        else:
            index += 1
    return left
