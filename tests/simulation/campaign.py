"""Many schedules on all cores, and what to tell of those that fail."""

from __future__ import annotations

import gc
import logging
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from simulation.checkers import check
from simulation.plans import dump_plan, shrink
from simulation.quorum_checkers import check_quorum
from simulation.quorum_schedules import QUORUM_SCENARIOS, quorum_scenario_of, run_quorum_schedule
from simulation.schedules import Run, run_schedule, scenario_of
from simulation.sessions_checkers import check as check_sessions
from simulation.sessions_schedules import SESSIONS_SCENARIOS, run_sessions, sessions_scenario_of
from simulation.tickets_checkers import check as check_tickets
from simulation.tickets_schedules import TICKETS_SCENARIOS, run_tickets, tickets_scenario_of
from simulation.workloads import SCENARIOS
from simulator import Fault

__all__ = [
    "ALL_SCENARIOS",
    "Outcome",
    "Report",
    "campaign_scenario_of",
    "describe_failure",
    "one_schedule",
    "run_campaign",
    "shrunk",
]

ALL_SCENARIOS = (*SCENARIOS, *TICKETS_SCENARIOS, *QUORUM_SCENARIOS, *SESSIONS_SCENARIOS)
"""Of all families of protocols: the name of a scenario says which."""

FAMILIES_EVERY = 5
"""Of so many schedules of a campaign one runs on a quorum (which takes longer), one on an ordered store, one
on a server with sessions."""

COLLECT_EVERY = 25
"""Schedules between two garbage collections: a schedule is full of cycles that live until its end."""


@dataclass(slots=True)
class Outcome:
    """What one schedule found."""

    seed: int
    scenario: str
    plan: list[Fault]
    found: dict[str, list[str]]
    coverage: Counter[tuple[str, str]]
    events: int
    grants: int


@dataclass(slots=True)
class Report:
    """What all of them found."""

    schedules: int = 0
    events: int = 0
    grants: int = 0
    coverage: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.schedules += 1
        self.events += outcome.events
        self.grants += outcome.grants
        self.coverage.update(outcome.coverage)
        if outcome.found:
            self.failures.append(outcome)


def one_schedule(seed: int, scenario: str | None = None, plan: list[Fault] | None = None) -> Outcome:
    run: Run
    if scenario in QUORUM_SCENARIOS:
        run = run_quorum_schedule(seed, scenario, plan)
        found = check_quorum(run)
    elif scenario in TICKETS_SCENARIOS:
        run = run_tickets(seed, scenario, plan)
        found = check_tickets(run)
    elif scenario in SESSIONS_SCENARIOS:
        run = run_sessions(seed, scenario, plan)
        found = check_sessions(run)
    else:
        run = run_schedule(seed, scenario, plan)
        found = check(run)
    grants = sum(1 for event in run.world.trace if event.__class__.__name__ == "Began")
    return Outcome(seed, run.scenario, run.plan, found, run.world.coverage, run.world.events, grants)


def shrunk(outcome: Outcome) -> Outcome:
    """The same failure with as little going wrong as it needs."""
    wanted = set(outcome.found)

    def fails(plan: list[Fault]) -> bool:
        return bool(wanted & set(one_schedule(outcome.seed, outcome.scenario, plan).found))

    return one_schedule(outcome.seed, outcome.scenario, shrink(outcome.plan, fails))


def describe_failure(outcome: Outcome) -> str:
    """Seed, plan, what is wrong, and how to see it again."""
    lines = [f"{outcome.scenario}, seed {outcome.seed}:"]
    for checker, wrong in outcome.found.items():
        lines += [f"  {checker}: {reported}" for reported in wrong[:3]]
        if len(wrong) > 3:
            lines.append(f"  {checker}: and {len(wrong) - 3} more")
    lines.append("  with" if outcome.plan else "  with nothing going wrong")
    lines += [f"    {fault}" for fault in outcome.plan]
    lines.append(
        f"  again: make sim SCHEDULES=1 SCENARIO='{outcome.scenario}' SEED={outcome.seed} "
        f"PLAN='{dump_plan(outcome.plan)}'"
    )
    return "\n".join(lines)


def run_campaign(seeds: range, processes: int, scenario: str | None = None) -> Iterator[Outcome]:
    """The outcomes as they come; all of one scenario, if it is named."""
    one = partial(_one, scenario)
    if processes <= 1:
        yield from map(one, seeds)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, _prepare) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=10)


def _prepare() -> None:
    logging.disable(logging.CRITICAL)  # what scripts log is not news here
    gc.disable()


_done = 0


def _one(scenario: str | None, seed: int) -> Outcome:
    global _done
    _done += 1
    if _done % COLLECT_EVERY == 0:
        gc.collect()
    return one_schedule(seed, scenario or campaign_scenario_of(seed))


def campaign_scenario_of(seed: int) -> str:
    family = seed % FAMILIES_EVERY
    if family == 0:
        return quorum_scenario_of(seed)
    if family == 2:
        return sessions_scenario_of(seed)
    return tickets_scenario_of(seed) if family == 1 else scenario_of(seed)
