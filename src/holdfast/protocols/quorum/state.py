"""What one client knows of its nodes and of its own attempts. Plain data with a few derived answers.

Threads share it: every method leans on single dict and attribute operations, which do not tear.
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
"""For the path of every grant: without the detour through the Python constructor of a named tuple."""

_NOBODY: Final[frozenset[int]] = frozenset()
_NO_TERMS: Final = (0, 0, "", "", "", (), "", 0)

DECIDE_SECONDS: Final = 5.0
"""An attempt that has no majority by then never gets one: who rejoins waits for longer than this."""

HINT_AHEAD_US: Final = 30_000_000
"""Numbers farther ahead of the clock than this are no hints any more: nodes would refuse them."""

BACK_OFF: Final = 1.5
BACK_OFF_MAX: Final = 5.0
"""How often ``retry_seconds`` the pause between two attempts grows to at most."""


Terms = tuple[int, int, str, str, str, tuple[str, ...], str, int]
"""What is asked for, as ``node.Acquire`` has it behind the owner and the hint: the ttl is the first of it."""


@dataclass(slots=True)
class Attempt:
    """One who wants a name, or has it. On the nodes every try goes by an owner of its own."""

    name: str
    nonce: str
    tries: int = 0
    owner: str = ""
    """By which it may be known to nodes; empty: nothing of it is left there."""
    absent: frozenset[int] = _NOBODY
    """Nodes that have answered that they have nothing of it: they need not be told of its end."""
    token: int = 0
    ttl: float = 0.0
    holders: tuple[Holder, ...] = ()
    """Who had it when we last looked."""
    terms: Terms = _NO_TERMS
    """What was asked for."""
    held_until: float = inf
    """By the local clock: no renewal extends it beyond this."""
    is_released: bool = False
    """It is being given back: it must not be given to any more nodes."""

    def begin(self, number: int) -> str:
        """Another try, which nobody has ever used as an owner."""
        self.tries += 1
        self.absent = _NOBODY
        self.owner = f"{self.nonce}.{number:x}"
        return self.owner


@dataclass(slots=True)
class Quorum:
    """The nodes as one client sees them."""

    client: str
    labels: tuple[str, ...]
    """The nodes by name, for people."""
    node_seconds: float
    """How long one round of questions waits at most."""
    drift: float
    """How much faster than ours a node's clock may run."""
    retry_seconds: float
    jitter_seconds: float
    linger: float
    """How long a request can be under way after its caller gave up."""
    now: Callable[[], float]
    """What ``await Now()`` tells, without the way through the driver: for the path of every grant."""
    wall_us: Callable[[], int]
    """Wall time in microseconds: only ever a hint for numbers, never compared with a deadline."""
    initialises: bool = True
    """A set of which all nodes are empty is initialised by who comes first."""
    set_id: str = ""
    """Which set this is, once a majority has said so."""
    largest_seen: int = 0
    """The largest number that any node told us."""
    offset: int = 0
    """What our wall clock lacks of the nodes' clocks, once they told us, in microseconds."""
    unready: set[int] = field(default_factory=set)
    """Nodes that last said they are not ready."""
    restores_at: float = 0.0
    """When they are next looked after."""
    failed_restores: int = 0
    node_reports: dict[int, NodeDescription | str] = field(default_factory=dict)
    """Node → what it last said of itself, or why it said nothing."""
    attempts: dict[str, Attempt] = field(default_factory=dict)
    """By the nonce of the protocol above."""
    waiting: dict[str, dict[str, None]] = field(default_factory=dict)
    """Name → those of this client who wait for it, in their order."""
    watching: set[str] = field(default_factory=set)
    unresponsive: dict[int, float] = field(default_factory=dict)
    """Node → until when no renewal waits for it: it kept one waiting, in vain."""
    tries: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    stretch: float = field(init=False)
    """How many times longer than it is relied on, less the drift that all leases allow for, nodes keep it."""
    nodes: range = field(init=False)
    size: int = field(init=False)
    majority: int = field(init=False)
    member: str = field(init=False)
    """``set/size``: what the mark of each node begins with."""
    relied: float = field(init=False)
    """The part of a ttl for which a claim is relied on, however fast the clocks of nodes may run."""
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
        self.set_id = set_id  # last: whoever sees that it is known takes the rest to be known, too

    def ask(
        self, batch: Batch, enough: Callable[[Answers], bool], handoff_until: float | None = None
    ) -> Broadcast:
        """The same questions for all nodes."""
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
        """Whether it is time to look after nodes that are not ready."""
        return bool(self.unready) and self.now() >= self.restores_at

    def next_try(self) -> int:
        """A number for a try that this client has never used."""
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
        """A number that is new to all nodes, as far as we can know."""
        wall_us += self.offset
        return self.largest_seen + 1 if wall_us <= self.largest_seen < wall_us + HINT_AHEAD_US else wall_us

    def note_number(self, number: int) -> None:
        if number > self.largest_seen:
            self.largest_seen = number

    def node_ttl_us(self, ttl: float) -> int:
        """How long nodes keep what is relied on for ``ttl``. Whoever reads it there undoes it: ``views``."""
        return round(ttl * self.stretch * 1_000_000)

    def release_of(self, attempt: Attempt) -> tuple[str, Release]:
        """For all nodes that may have it. One that has not answered may yet be asked, and is to refuse."""
        return attempt.name, _new(Release, (attempt.owner, self.linger_us))

    def nodes_to_release(self, attempt: Attempt) -> Sequence[int]:
        """The nodes that are to be told of its end."""
        absent = attempt.absent
        return [node for node in self.nodes if node not in absent] if absent else self.nodes

    def valid_until(self, sent: float, ttl: float) -> float:
        """Until when an attempt may be decided, counted from before its first request was sent."""
        return sent + min(ttl * self.relied - MARGIN_SECONDS, DECIDE_SECONDS)

    def poll_after(self, tries: int, soonest: float, chance: float) -> float:
        """Seconds until the next try: ever longer up to a bound, or when what is held runs out."""
        longest = self.retry_seconds * BACK_OFF_MAX
        pause = min(self.retry_seconds * BACK_OFF ** min(tries - 1, 10), longest, soonest)
        return pause + self.jitter_seconds * chance


def column(answers: Answers, index: int) -> dict[int, Any]:
    """The answers of all nodes to one question of a batch; trouble stays what it is."""
    return {node: answer[index] if answer.__class__ is tuple else answer for node, answer in answers.items()}
