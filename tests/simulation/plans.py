"""Fault plans: random, written as JSON, and shrunk."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final

from simulation.workloads import FAULTS_END
from simulator import Fault
from simulator.faults import FORGETS

__all__ = ["WALL_JUMP", "dump_plan", "load_plan", "make_plan", "shrink", "wall_jumps"]

CLIENTS: Final = 4

WEIGHTS: Final = {
    "loss": 3,
    "duplicate": 2,
    "slow": 4,
    "partition": 3,
    "partition-in": 2,
    "partition-out": 2,
    "pause": 4,
    "crash": 3,
    "interrupt": 6,
    "node crash": 2,
    "node hang": 2,
    "node amnesia": 1,
    "node rollback": 1,
    "node flush": 1,
    "clock jump": 1,
}

WALL_JUMP: Final = "wall jump"
"""Concerns those only whose clients look at the wall: with it among the kinds, some come on top."""


def make_plan(
    chance: random.Random,
    intensity: float = 1.0,
    kinds: Sequence[str] = tuple(WEIGHTS),
    bursts: bool = False,
) -> list[Fault]:
    """Nothing, a little or a lot. Half of the plans leave the node its memory and its clock.

    ``bursts``: everything happens at full seconds; so do half of the faults, or a little later.
    """
    count = round(chance.choice((0, 1, 2, 3, 5, 8, 12)) * intensity)
    forgets = chance.random() < 0.5
    chosen = [kind for kind in kinds if kind != WALL_JUMP]
    possible = [kind for kind in chosen if forgets or kind not in (*FORGETS, "clock jump")]
    if not possible:
        possible = chosen
    weights = [WEIGHTS[kind] for kind in possible]
    plan = [_make(kind, chance, bursts) for kind in chance.choices(possible, weights, k=count)]
    if WALL_JUMP in kinds:
        plan += wall_jumps(chance)
    return sorted(plan, key=lambda fault: fault.at)


def wall_jumps(chance: random.Random) -> list[Fault]:
    """Now and then the wall clock of a client's machine is set, by a little or by an hour."""
    return [
        Fault(
            round(chance.uniform(0.3, FAULTS_END - 4.0), 4),
            WALL_JUMP,
            chance.randrange(CLIENTS),
            0.0,
            chance.choice((-3600.0, -2.0, 0.05, 5.0, 3600.0)),
        )
        for _ in range(chance.choice((0, 0, 1, 3)))
    ]


def _make(kind: str, chance: random.Random, bursts: bool) -> Fault:
    at = chance.uniform(0.3, FAULTS_END - 4.0)
    if bursts and chance.random() < 0.5:
        at = round(at) + chance.uniform(0.0, 0.03)
    at = round(at, 4)
    first = -1 if kind in ("loss", "duplicate", "slow") else 0
    target = chance.randrange(first, CLIENTS)
    duration, amount = 0.0, 0.0
    if kind in ("loss", "duplicate"):
        duration, amount = chance.uniform(0.5, 4.0), chance.choice((0.1, 0.3, 0.6))
    elif kind == "slow":
        duration, amount = chance.uniform(0.5, 4.0), chance.choice((0.02, 0.2, 1.0, 2.0))
    elif kind.startswith("partition"):
        duration = chance.choice((0.1, 0.5, 1.5, 4.0)) * chance.uniform(0.5, 1.0)
    elif kind == "pause":
        duration = chance.choice((0.1, 1.0, 3.0, 7.0)) * chance.uniform(0.5, 1.0)
    elif kind == "crash":
        duration = chance.uniform(0.1, 2.0)
    elif kind == "interrupt":
        amount = float(chance.choice((0, 1, 2, 3, 5, 8, 13, 21, 34)))
    elif kind == "node hang":
        duration = chance.uniform(0.1, 3.0)
    elif kind == "clock jump":
        amount = chance.choice((-2.0, 1.0, 5.0, 3600.0))
    elif kind == "node rollback":
        duration, amount = chance.uniform(0.05, 2.0), chance.uniform(0.1, 1.0)
    elif kind != "node flush":
        duration = chance.uniform(0.05, 2.0)
    return Fault(at, kind, target, round(duration, 3), round(amount, 3))


def dump_plan(plan: list[Fault]) -> str:
    return json.dumps([list(asdict(fault).values()) for fault in plan])


def load_plan(text: str) -> list[Fault]:
    return [Fault(*fields) for fields in json.loads(text)]


def shrink(plan: list[Fault], fails: Callable[[list[Fault]], bool]) -> list[Fault]:
    """A plan of which nothing can be left out any more (delta debugging): every part of it is needed."""
    parts = 2
    while len(plan) >= 1:
        size = max(len(plan) // parts, 1)
        for start in range(0, len(plan), size):
            rest = plan[:start] + plan[start + size :]
            if fails(rest):
                plan, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(plan))
    return plan
