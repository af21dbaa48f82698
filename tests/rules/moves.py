"""Generated sequences: several clients ask all kinds of things of one record while time passes.

Attempts have few names, so that retries, late copies and requests by those who hold nothing come by
themselves; to get anywhere, most requests that concern a grant or a place are aimed at one that is there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from holdfast.rules.record import Record
from holdfast.rules.requests import (
    Acquire,
    Adopt,
    Break,
    Downgrade,
    Export,
    Inspect,
    ReadCell,
    Refresh,
    Release,
    Renew,
    Request,
    Resize,
    SetValue,
    Stop,
    SwapCell,
    Unwatch,
    Watch,
    Withdraw,
)
from rules.judge import Judge

CLIENTS = ("a", "b", "c")
ATTEMPTS = 3
SEALS = ("seal", "seal", "seal", "another seal")
MODES = {"lock": ("exclusive",), "rwlock": ("read", "write"), "semaphore": ("permit",)}
KINDS = tuple(MODES)
PAUSES = (*[0.0] * 12, *[0.001] * 4, 0.5, 1.0, 1.9, 2.0, 2.1, 3.0, 4.9, 5.0, 7.0, 31.0)
TTLS = (0.5, 3.0, 10.0, 30.0)
LINGERS = (0.0, 0.0, 1.0, 60.0)
LIMIT = 2
AIMED = (Release, Withdraw, Renew, Refresh, Stop, Export, Adopt, Downgrade, SetValue)


class Move(NamedTuple):
    """Time passes, then a client sends a request."""

    pause: float
    aim: str
    """Whose request it becomes: ``holder``, ``waiter``, or as it stands."""
    request: Request
    wall_us: int
    dead: tuple[str, ...] = ()


def nonces() -> st.SearchStrategy[str]:
    return st.builds(
        lambda client, number: f"{client}{number}",
        st.sampled_from(CLIENTS),
        st.integers(min_value=0, max_value=ATTEMPTS - 1),
    )


def mode_of(nonce: str, kind: str) -> str:
    """An attempt is always for the same mode, however often it is asked."""
    return MODES[kind][sum(nonce.encode()) % len(MODES[kind])]


def acquires(kind: str) -> st.SearchStrategy[Acquire]:
    return st.builds(
        lambda nonce, ttl, wait, fair, renews, max_hold: Acquire(
            nonce,
            nonce[0],
            f"host/1/{nonce}",
            kind,
            mode_of(nonce, kind),
            ttl,
            wait,
            fair,
            renews,
            max_hold,
            LIMIT if kind == "semaphore" else 0,
        ),
        nonces(),
        st.sampled_from(TTLS),
        st.sampled_from((True, True, False)),
        st.sampled_from((True, True, True, False)),
        st.sampled_from((True, True, False)),
        st.sampled_from((None, None, 4.0)),
    )


def requests(kind: str) -> st.SearchStrategy[Request]:
    nonce, linger, seal = nonces(), st.sampled_from(LINGERS), st.sampled_from(SEALS)
    other = KINDS[(KINDS.index(kind) + 1) % len(KINDS)]
    releasing = st.builds(Release, nonce, linger) | st.builds(Withdraw, nonce, linger)
    living = st.builds(Renew, nonce, st.sampled_from(TTLS)) | st.builds(Refresh, nonce)
    watching = st.builds(Watch, st.sampled_from(("w1", "w2")), st.sampled_from(CLIENTS)) | st.builds(
        Unwatch, st.sampled_from(("w1", "w2"))
    )
    rare = (
        st.builds(Stop, nonce)
        | st.builds(Export, nonce, seal)
        | st.builds(lambda n, c, s: Adopt(n, c, f"host/2/{c}", s), nonce, st.sampled_from(CLIENTS), seal)
        | st.builds(lambda n: Downgrade(n, f"{n[0]}r"), nonce)
        | st.builds(Break, st.none() | st.integers(1, 40), st.just("test"))
        | st.builds(SetValue, nonce, st.binary(max_size=3), st.just(60.0))
        | st.builds(Resize, st.just(LIMIT), st.integers(1, 4))
        | st.just(Inspect())
        | acquires(other)
    )
    often = acquires(kind)
    return often | often | often | releasing | living | watching | rare


def moves(kind: str, longest: int = 25) -> st.SearchStrategy[list[Move]]:
    return st.lists(
        st.builds(
            Move,
            st.sampled_from(PAUSES),
            st.sampled_from(("holder", "holder", "waiter", "")),
            requests(kind),
            st.sampled_from((0, 0, 0, 1_000, 5_000)),
            st.sampled_from((*[()] * 15, ("a",), ("b", "c"))),
        ),
        min_size=2,
        max_size=longest,
    )


def long_moves(kind: str, seed: int, length: int = 60) -> list[Move]:
    """As ``moves``, by a generator that is quick enough for long sequences in great numbers."""
    pick = random.Random(seed).choice
    nonces = [f"{client}{number}" for client in CLIENTS for number in range(ATTEMPTS)]
    limit = LIMIT if kind == "semaphore" else 0

    def acquire() -> Request:
        nonce = pick(nonces)
        wait, fair, renews = pick((True, True, False)), pick((True, True, True, False)), pick((True, False))
        hold = pick((None, None, None, 4.0))
        return Acquire(
            nonce, nonce[0], nonce, kind, mode_of(nonce, kind), pick(TTLS), wait, fair, renews, hold, limit
        )

    def acquire_as_another_kind() -> Request:
        nonce, other = pick(nonces), pick(KINDS)
        return Acquire(nonce, nonce[0], nonce, other, mode_of(nonce, other), 1.0, True)

    def downgrade() -> Request:
        nonce = pick(nonces)
        return Downgrade(nonce, f"{nonce}r")

    asks: list[Callable[[], Request]] = [
        *[acquire] * 8,
        *[lambda: Release(pick(nonces), pick(LINGERS))] * 3,
        *[lambda: Withdraw(pick(nonces), pick(LINGERS))] * 2,
        *[lambda: Renew(pick(nonces), pick(TTLS))] * 2,
        *[lambda: Refresh(pick(nonces))] * 3,
        lambda: Watch(pick(("w1", "w2")), pick(CLIENTS)),
        lambda: Unwatch(pick(("w1", "w2"))),
        lambda: Stop(pick(nonces)),
        lambda: Export(pick(nonces), pick(SEALS)),
        lambda: Adopt(pick(nonces), pick(CLIENTS), "host/2/adopter", pick(SEALS)),
        downgrade,
        lambda: Break(pick((None, 1, 5, 1000)), "test"),
        lambda: SetValue(pick(nonces), pick((b"", b"x", b"yz")), 60.0),
        lambda: Resize(LIMIT, pick((1, 2, 3, 4))),
        Inspect,
        acquire_as_another_kind,
    ]
    return [
        Move(
            pick(PAUSES),
            pick(("holder", "holder", "waiter", "")),
            pick(asks)(),
            pick((0, 0, 0, 1_000, 5_000)),
            pick((*[()] * 15, ("a",), ("b", "c"))),
        )
        for _ in range(length)
    ]


def handover_moves() -> list[Move]:
    """A lock on its way: exported twice, asked for with what is not its secret, adopted, and handed on."""
    asks: list[Request] = [
        Acquire("a0", "a", "host/1/a", "lock", "exclusive", 30.0, False),
        Adopt("a0", "b", "host/2/b", "host/1/a"),
        Export("a0", "first"),
        Export("a0", "second"),
        *[Adopt("a0", "b", "host/2/b", seal) for seal in ("first", "", "a0", "host/1/a", "second", "second")],
        Adopt("a0", "c", "host/3/c", "second"),
        Export("a0", "third"),
        Adopt("a0", "c", "host/3/c", "second"),
        Adopt("a0", "c", "host/3/c", "third"),
    ]
    return [Move(0.5, "", ask, 0) for ask in asks]


def aimed(move: Move, record: Record) -> Request:
    """The request of this move, made by one whom it concerns if there is one."""
    request = move.request
    there = [h.nonce for h in record.holders] if move.aim == "holder" else []
    there = [w.nonce for w in record.queue] if move.aim == "waiter" else there
    if not there or not isinstance(request, AIMED):
        return request
    # The name drawn picks one of those there, so that every one of them has its chance.
    target = there[sum(request.nonce.encode()) % len(there)]
    if isinstance(request, Downgrade):
        return request._replace(nonce=target, reader_nonce=f"{target}r")
    return request._replace(nonce=target)


def play(judge: Judge, sequence: Sequence[Move]) -> None:
    for move in sequence:
        judge.now += move.pause
        request = aimed(move, judge.record)
        # The dead do not ask.
        dead = tuple(client for client in move.dead if client != asks(request))
        judge.step(request, move.wall_us, dead)


def asks(request: Request) -> str:
    if isinstance(request, Acquire | Adopt | Watch):
        return request.client
    return "" if isinstance(request, Break | Resize | Inspect | ReadCell | SwapCell) else request.nonce[0]


def shortest(new_judge: Callable[[], Judge], sequence: Sequence[Move]) -> list[Move]:
    """What is left of a failing sequence without the moves that do not matter; quicker than shrinking."""
    left = list(sequence)
    index = 0
    while index < len(left):
        without = left[:index] + left[index + 1 :]
        try:
            play(new_judge(), without)
        except AssertionError:
            left = without
        else:
            index += 1
    return left
