"""Links: what becomes of a message between a client and a server."""

from __future__ import annotations

import random
from typing import Final

from .faults import Fault

__all__ = ["Link"]

FASTEST_SECONDS: Final = 0.0005
SPREAD_SECONDS: Final = 0.006
HELD_BACK: Final = 0.5
"""How many of the messages into a partition arrive when it is over; the others never do."""


class Link:
    """Both directions between two machines. Without faults messages take a few milliseconds each, and so
    overtake each other; the faults in force decide about more."""

    __slots__ = ("_active", "_blocked", "_duplicate", "_loss", "_random", "_slow", "newest", "troubled")

    def __init__(self, chance: random.Random) -> None:
        self._random = chance.random
        self._active: list[tuple[Fault, float]] = []
        self.newest = 0.0
        """Of the requests that have arrived, when the last one was sent; what was sent before it and comes
        now was overtaken."""
        self._begin()

    def _begin(self) -> None:
        self.troubled = bool(self._active)
        self._loss = self._duplicate = self._slow = 0.0
        self._blocked = [0.0, 0.0]
        for fault, ends_at in self._active:
            if fault.kind == "loss":
                self._loss = max(self._loss, fault.amount)
            elif fault.kind == "duplicate":
                self._duplicate = max(self._duplicate, fault.amount)
            elif fault.kind == "slow":
                self._slow = max(self._slow, fault.amount)
            else:
                if fault.kind != "partition-in":
                    self._blocked[1] = max(self._blocked[1], ends_at)
                if fault.kind != "partition-out":
                    self._blocked[0] = max(self._blocked[0], ends_at)

    def begin(self, fault: Fault, ends_at: float) -> None:
        self._active.append((fault, ends_at))
        self._begin()

    def end(self, fault: Fault) -> None:
        self._active = [entry for entry in self._active if entry[0] is not fault]
        self._begin()

    def delay(self) -> float:
        r = self._random()
        return FASTEST_SECONDS + r * r * SPREAD_SECONDS

    def fate(self, outward: bool, now: float) -> tuple[list[float], list[str]]:
        """After how long copies of this message arrive (none: it is lost), and which faults did it."""
        chance = self._random
        delay = self.delay()
        hits: list[str] = []
        blocked_until = self._blocked[outward]
        if blocked_until > now:
            hits.append("partition")
            if chance() >= HELD_BACK:
                return [], hits
            delay += blocked_until - now
        if self._loss and chance() < self._loss:
            return [], [*hits, "loss"]
        if self._slow:
            hits.append("slow")
            delay += chance() * self._slow
        if self._duplicate and chance() < self._duplicate:
            return [delay, delay + chance()], [*hits, "duplicate"]
        return [delay], hits
