"""Locks on a quorum of nodes in virtual time: what ships keeps its promises, each known mistake is caught."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from simulation.campaign import describe_failure, one_schedule, shrunk
from simulation.coverage import QUORUM_ESSENTIAL, missing_cells, unknown_faults, unknown_steps
from simulation.plans import WALL_JUMP
from simulation.quorum_checkers import QUORUM_CHECKERS, check_quorum
from simulation.quorum_mutants import QUORUM_MUTANTS, QuorumMutant
from simulation.quorum_schedules import (
    QUORUM_SCENARIOS,
    QuorumRun,
    quorum_scenario_of,
    run_quorum_schedule,
)
from simulator import QUORUM_FORGETS, Fault

BATCHES = 4
BATCH = 14

STRUCK_BY = 70
SCHEDULES_AT_MOST = 60


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_promises_are_kept(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        outcome = one_schedule(seed, quorum_scenario_of(seed))
        if outcome.found:
            pytest.fail(describe_failure(shrunk(outcome)), pytrace=False)
        gc.collect()


def test_a_late_reply_about_a_lock_broken_meanwhile_grants_nothing() -> None:
    """It learns of its lease, with its old token, after others had later ones: no grant is out of order."""
    plan = [Fault(3.5271, "slow", 2, 3.356, 1.0)]
    assert not check_quorum(run_quorum_schedule(402, "quorum handling", plan, drift=0.01))


def scheduled(mutant: QuorumMutant, number: int) -> QuorumRun:
    return run_quorum_schedule(
        number,
        mutant.scenarios[number % len(mutant.scenarios)],
        None if mutant.plan is None else list(mutant.plan),
        mutant.intensity,
        mutant.kinds,
        mutant.size,
        mutant.node_seconds,
        mutant.drift,
    )


@pytest.mark.slow
@pytest.mark.parametrize("mutant", QUORUM_MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mistake_is_caught(mutant: QuorumMutant) -> None:
    unaware = set(mutant.caught_by)
    assert unaware <= set(QUORUM_CHECKERS)
    for number in range(mutant.first, mutant.first + SCHEDULES_AT_MOST):
        with mutant.patch():
            caught = check_quorum(scheduled(mutant, number))
        shipped = scheduled(mutant, number)
        assert not check_quorum(shipped)
        unaware -= set(caught)
        if not unaware:
            return
    pytest.fail(f"{mutant.name}: in {SCHEDULES_AT_MOST} schedules not seen by {', '.join(sorted(unaware))}")


@pytest.mark.parametrize("scenario", QUORUM_SCENARIOS)
def test_the_same_seed_is_the_same_world(scenario: str) -> None:
    def story(seed: int) -> list[tuple[str, float]]:
        return [(type(event).__name__, event.at) for event in run_quorum_schedule(seed, scenario).world.trace]

    assert story(4) == story(4)
    assert story(4) != story(5)


@pytest.mark.slow
def test_every_essential_step_is_struck() -> None:
    cells: Counter[tuple[str, str]] = Counter()
    for seed in range(STRUCK_BY):
        scenario = "quorum handling" if seed % 2 else quorum_scenario_of(seed // 2)
        cells.update(run_quorum_schedule(seed, scenario, intensity=3.0).world.coverage)
    assert missing_cells(cells, QUORUM_ESSENTIAL) == []
    assert unknown_steps(cells) == set()
    assert unknown_faults(cells) == set()


def test_what_the_protocol_is_for_does_happen() -> None:
    """Stamps, renewed marks, nodes that rejoin, clients whose clocks are an hour off: all of it is struck."""
    happened: Counter[str] = Counter()
    unknown: set[str] = set()
    for seed in range(14):
        run = run_quorum_schedule(seed, intensity=2.0)
        happened["far clock"] += any(abs(c.wall.base) > 3000 for c in run.world.clients)
        happened[WALL_JUMP] += any(fault.kind == WALL_JUMP for fault in run.plan)
        unknown |= unknown_steps(run.world.coverage)
        happened["forgets"] += any(fault.kind in QUORUM_FORGETS for fault in run.plan)
        for event in run.world.trace:
            what = getattr(event, "what", "")
            happened[what] += 1
            if what == "stored":
                happened[type(event.facts[1]).__name__] += 1  # type: ignore[union-attr]  # a note
        happened["lives"] += sum(node.lives - 1 for node in run.nodes)
    for what in ("Stamp", "Renew", "Release", "Export", "Adopt", "rejoined", "lives", "far clock", "forgets"):
        assert happened[what], what
    assert happened[WALL_JUMP]
    assert unknown == set()
