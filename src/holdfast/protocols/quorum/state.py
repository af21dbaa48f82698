"""What one client knows about its nodes and its own attempts: data and a few derived values.

Threads share it: every method relies on single operations on dicts and attributes, which are atomic.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from ...core.deadlines import DRIFT, MARGIN_SECONDS
from ...rules.node import NodeDescription, Release
from ...rules.record import Holder
from .effects import Answers, Batch, Broadcast
from .tally import majority

__all__ = ["DECIDE_SECONDS", "Attempt", "Quorum", "Terms", "column"]

_new: Final = tuple.__new__
"""For the hot path: it skips the Python constructor of a named tuple."""

_NO_NODES: Final[frozenset[int]] = frozenset()
_NO_TERMS: Final = (0, 0, "", "", "", (), "", 0)

DECIDE_SECONDS: Final = 5.0
"""An attempt without a majority by then never gets one. A node that rejoins waits for longer than this."""

HINT_AHEAD_US: Final = 30_000_000
"""Numbers further ahead of the clock than this are not used as hints: nodes would refuse them."""

BACK_OFF: Final = 1.5
BACK_OFF_MAX: Final = 5.0
"""The largest pause between two tries, as a multiple of ``retry_seconds``."""


Terms = tuple[int, int, str, str, str, tuple[str, ...], str, int]
"""The fields of ``node.Acquire`` behind the owner and the hint, from the ttl on."""


@dataclass(slots=True)
class Attempt:
    """An attempt to acquire a name, also once it holds it. Every try has an owner of its own on the nodes."""

    name: str
    nonce: str
    tries: int = 0
    owner: str = ""
    """The owner of the last try; empty: nodes have nothing of the attempt."""
    absent: frozenset[int] = _NO_NODES
    """Nodes that have answered that they have nothing of it. A release need not be sent to them."""
    token: int = 0
    ttl: float = 0.0
    holders: tuple[Holder, ...] = ()
    """The holders at the last try."""
    terms: Terms = _NO_TERMS
    """What was requested."""
    held_until: float = inf
    """By the local clock. No renewal extends the lease beyond this."""
    is_released: bool = False
    """It is being released: no repair may send it to further nodes."""

    def begin(self, number: int) -> str:
        """Start another try. Returns its owner, which is new."""
        self.tries += 1
        self.absent = _NO_NODES
        self.owner = f"{self.nonce}.{number:x}"
        return self.owner


@dataclass(slots=True)
class Quorum:
    """The nodes as one client sees them."""

    client: str
    labels: tuple[str, ...]
    """The nodes by name, for messages."""
    node_seconds: float
    """The time limit of one round."""
    drift: float
    """How much faster than the local clock the clock of a node may run."""
    retry_seconds: float
    jitter_seconds: float
    linger: float
    """How long a request of a caller that gave up can still be executed."""
    now: Callable[[], float]
    """The local clock, as ``await Now()`` reads it. For the hot path, without the driver."""
    wall_us: Callable[[], int]
    """Wall time in microseconds. It is a hint for numbers, and never compared with a deadline."""
    initialises: bool = True
    """Whether this client initialises a set of empty nodes."""
    set_id: str = ""
    """The id of the set, once a majority has reported it."""
    largest_seen: int = 0
    """The largest number in any answer."""
    offset: int = 0
    """How far the clocks of the nodes are ahead of the local wall clock, in microseconds, once they have
    reported it."""
    unready: set[int] = field(default_factory=set)
    """Nodes whose last answer was Unready."""
    restores_at: float = 0.0
    """When they are next restored."""
    failed_restores: int = 0
    node_reports: dict[int, NodeDescription | str] = field(default_factory=dict)
    """Node → its last description, or why there is none."""
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """By the nonce of the attempt."""
    waiting: dict[str, dict[str, None]] = field(default_factory=dict)
    """Name → the nonces of this client's waiters, in their order."""
    watching: set[str] = field(default_factory=set)
    unresponsive: dict[int, float] = field(default_factory=dict)
    """Node → until when no renewal waits for it."""
    tries: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    stretch: float = field(init=False)
    """How many times longer than the client relies on it nodes keep a claim, beyond the drift of every
    lease."""
    nodes: range = field(init=False)
    size: int = field(init=False)
    majority: int = field(init=False)
    member: str = field(init=False)
    """``set/size``: the beginning of the mark of each node."""
    relied: float = field(init=False)
    """The part of a ttl for which the client relies on a claim, however fast the clocks of nodes may run."""
    linger_us: int = field(init=False)

    def __post_init__(self) -> None:
        self.stretch = max((1.0 - DRIFT) / (1.0 - self.drift), 1.0)
        self.size = len(self.labels)
        self.nodes = range(self.size)
        self.majority = majority(self.size)
        self.relied = 1.0 - max(self.drift, DRIFT)
        self.linger_us = round(self.linger * 1e6)
        self.set_membership(self.set_id)

    def set_membership(self, set_id: str) -> None:
        self.member = f"{set_id}/{self.size}"
        self.set_id = set_id  # last: a thread that sees it relies on the rest

    def ask(
        self, batch: Batch, enough: Callable[[Answers], bool], handoff_until: float | None = None
    ) -> Broadcast:
        """The same batch for all nodes."""
        asks = tuple(zip(self.nodes, itertools.repeat(batch), strict=False))
        return _new(Broadcast, (asks, enough, self.node_seconds, self.member, handoff_until))

    def ask_each(
        self,
        asks: dict[int, Batch],
        enough: Callable[[Answers], bool],
        seconds_min: float = 0.0,
        handoff_until: float | None = None,
    ) -> Broadcast:
        seconds = max(self.node_seconds, seconds_min)
        return Broadcast(tuple(asks.items()), enough, seconds, self.member, handoff_until)

    def attempt(self, name: str, nonce: str) -> Attempt:
        known = self.attempts.get(nonce)
        if known is None:
            known = self.attempts[nonce] = Attempt(name, nonce)
        return known

    def forget(self, attempt: Attempt) -> None:
        self.attempts.pop(attempt.nonce, None)
        if self.waiting:
            self.remove_waiter(attempt)

    def is_restore_due(self) -> bool:
        """Whether it is time to restore unready nodes."""
        return bool(self.unready) and self.now() >= self.restores_at

    def next_try(self) -> int:
        """A number for a try, which this client has never used."""
        return next(self.tries)

    def is_waiting(self, attempt: Attempt) -> bool:
        return attempt.nonce in self.waiting.get(attempt.name, ())

    def add_waiter(self, attempt: Attempt) -> None:
        self.waiting.setdefault(attempt.name, {})[attempt.nonce] = None

    def remove_waiter(self, attempt: Attempt) -> None:
        others = self.waiting.get(attempt.name)
        if others is not None:
            others.pop(attempt.nonce, None)
            if not others:
                self.waiting.pop(attempt.name, None)

    def next_waiter(self, name: str) -> str | None:
        for nonce in list(self.waiting.get(name, ())):
            return nonce
        return None

    def hint(self, wall_us: int) -> int:
        """A number that is new to all nodes, as far as this client knows."""
        wall_us += self.offset
        return self.largest_seen + 1 if wall_us <= self.largest_seen < wall_us + HINT_AHEAD_US else wall_us

    def note_number(self, number: int) -> None:
        if number > self.largest_seen:
            self.largest_seen = number

    def node_ttl_us(self, ttl: float) -> int:
        """How long nodes keep a claim that the client relies on for ``ttl``. ``views`` reverses it."""
        return round(ttl * self.stretch * 1_000_000)

    def release_of(self, attempt: Attempt) -> tuple[str, Release]:
        """The release for all nodes that may have the attempt. A node that has not got the acquire yet
        refuses it then."""
        return attempt.name, _new(Release, (attempt.owner, self.linger_us))

    def nodes_to_release(self, attempt: Attempt) -> Sequence[int]:
        """The nodes that need the release."""
        absent = attempt.absent
        return [node for node in self.nodes if node not in absent] if absent else self.nodes

    def valid_until(self, sent: float, ttl: float) -> float:
        """Until when an attempt may be decided, from the time before its first request was sent."""
        return sent + min(ttl * self.relied - MARGIN_SECONDS, DECIDE_SECONDS)

    def poll_after(self, tries: int, soonest: float, chance: float) -> float:
        """Seconds until the next try: growing up to a bound, or until the current claim expires."""
        longest = self.retry_seconds * BACK_OFF_MAX
        pause = min(self.retry_seconds * BACK_OFF ** min(tries - 1, 10), longest, soonest)
        return pause + self.jitter_seconds * chance


def column(answers: Answers, index: int) -> dict[int, Any]:
    """The answers of all nodes to one question of a batch. Errors stay as they are."""
    return {node: answer[index] if answer.__class__ is tuple else answer for node, answer in answers.items()}
