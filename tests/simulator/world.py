"""True time and what happens in it."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .client import SimulatedClient
    from .servers import Node
    from .trace import Event

__all__ = ["Clock", "Livelock", "World"]

EVENTS_MAX: Final = 60_000
"""A schedule that takes more than this is going round in circles."""


class Livelock(Exception):
    """Things happen again and again, and time does not pass."""


class Clock:
    """A machine's clock: it has its own beginning and its own speed, and some may be set."""

    __slots__ = ("base", "rate")

    def __init__(self, base: float, rate: float) -> None:
        self.base = base
        self.rate = rate

    def read(self, true: float) -> float:
        return self.base + self.rate * true

    def when(self, local: float) -> float:
        """The true time at which it shows this."""
        return (local - self.base) / self.rate

    def jump(self, seconds: float) -> None:
        self.base += seconds


class World:
    """An ordered list of things to come, and the trace of those that were."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self.now = 0.0
        self.trace: list[Event] = []
        self.coverage: Counter[tuple[str, str]] = Counter()
        """(kind of fault, step it hit) → how often."""
        self.failures: list[str] = []
        """Scripts that ended with an error nobody expected."""
        self.node: Node
        self.clients: list[SimulatedClient] = []
        """By machine: the client that runs there now."""
        self.past: list[SimulatedClient] = []
        """Clients that crashed."""
        self.by_id: dict[str, SimulatedClient] = {}
        self.restart: Callable[[int], None] | None = None
        """Starts a new client on a machine whose last one crashed."""
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def stream(self, *parts: object) -> random.Random:
        """Chance of its own for each purpose, so that less of one does not change another."""
        return random.Random("/".join(map(str, (self.seed, *parts))))

    def at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        self._count = count = self._count + 1
        heapq.heappush(self._heap, (when, count, call, arguments))

    def run(self, until: float) -> None:
        """Let everything happen that happens before ``until``."""
        heap, pop = self._heap, heapq.heappop
        events = self.events
        while heap and heap[0][0] <= until:
            when, _, call, arguments = pop(heap)
            if when > self.now:
                self.now = when
            call(*arguments)
            events += 1
            if events > EVENTS_MAX:
                raise Livelock(f"more than {EVENTS_MAX} events by {self.now:.3f} s: going round in circles")
        self.events = events
        self.now = max(self.now, until)

    def cover(self, fault: str, step: str) -> None:
        self.coverage[fault, step] += 1
