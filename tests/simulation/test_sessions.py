"""The sessions family in virtual time: random schedules from fixed seeds, and bugs that checkers catch."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from simulation.campaign import describe_failure, one_schedule, shrunk
from simulation.coverage import SESSIONS_ESSENTIAL, missing_cells, unknown_steps
from simulation.mutants import Mutant
from simulation.sessions_checkers import SESSIONS_CHECKERS, check
from simulation.sessions_mutants import SESSIONS_MUTANTS
from simulation.sessions_schedules import SESSIONS_SCENARIOS, run_sessions, sessions_scenario_of
from simulator import Fault

BATCHES = 2
BATCH = 60
STRUCK_BY = 40
SCHEDULES_AT_MOST = 100

FOUND: dict[str, tuple[str, int, list[Fault]]] = {
    "a wait that was withdrawn just as it was granted had set a shorter idle timeout": (
        "sessions tools",
        109,
        [],
    ),
    "an attempt that was abandoned and repeated was released by the keeper": (
        "sessions crowd",
        398,
        [Fault(1.0119, "cancel", 3, 2.383, 0.4)],
    ),
    "an attempt that was refused and abandoned stayed in the pool": (
        "sessions rlock",
        3,
        [Fault(8.7357, "slow", -1, 3.845, 1.0)],
    ),
    "a release that was cancelled after it had unlocked was reported as a loss": (
        "sessions several",
        50,
        [Fault(3.4538, "cancel", 3, 1.047, 0.1)],
    ),
    "a release that closed a session that did not answer was reported as a loss": (
        "sessions several",
        402,
        [Fault(1.7674, "node hang", 3, 2.551, 0.0)],
    ),
    "a lock that a cancelled statement took, on a session that was cut off, was held for ever": (
        "sessions tools",
        1877,
        [
            Fault(0.3374, "cancel", 1, 2.95, 0.4),
            Fault(1.3897, "partition", 2, 1.041, 0.0),
            Fault(2.2548, "slow", 1, 3.592, 2.0),
        ],
    ),
    "a reader stayed in the pool whose writer was lost between two tries to downgrade": (
        "sessions rwlock",
        1161,
        [
            Fault(1.6115, "crash", 0, 1.814, 0.0),
            Fault(1.7788, "node crash", 2, 1.909, 0.0),
            Fault(6.6572, "partition-out", 1, 1.028, 0.0),
        ],
    ),
    "a lock that the keeper released as its session ended stayed in the pool": (
        "sessions tools",
        397,
        [
            Fault(2.0042, "crash", 2, 0.493),
            Fault(5.8805, "crash", 1, 0.969),
            Fault(7.0928, "slow", -1, 1.118, 1.0),
            Fault(9.7176, "pause", 2, 5.562),
        ],
    ),
}
"""Bugs that these schedules have found."""


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_promises_are_kept(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        outcome = one_schedule(seed, sessions_scenario_of(seed))
        if outcome.found:
            pytest.fail(describe_failure(shrunk(outcome)), pytrace=False)
        if seed % 20 == 0:
            gc.collect()


@pytest.mark.parametrize("scenario", SESSIONS_SCENARIOS)
def test_without_faults(scenario: str) -> None:
    run = run_sessions(7, scenario, [])
    assert not check(run)
    assert any(event.__class__.__name__ == "Began" for event in run.world.trace)


@pytest.mark.parametrize("what", FOUND)
def test_found_bugs_stay_fixed(what: str) -> None:
    scenario, seed, plan = FOUND[what]
    assert check(run_sessions(seed, scenario, plan)) == {}


@pytest.mark.slow
def test_every_essential_step_is_struck() -> None:
    cells: Counter[tuple[str, str]] = Counter()
    for seed in range(STRUCK_BY):
        cells.update(run_sessions(seed, intensity=3.0).world.coverage)
    assert missing_cells(cells, SESSIONS_ESSENTIAL) == []
    assert unknown_steps(cells) == set()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", SESSIONS_MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_is_caught(mutant: Mutant) -> None:
    assert set(mutant.caught_by) <= set(SESSIONS_CHECKERS)
    for number in range(SCHEDULES_AT_MOST):
        scenario = mutant.scenarios[number % len(mutant.scenarios)]
        with mutant.patch():
            caught = check(run_sessions(number, scenario, None, mutant.intensity, mutant.kinds))
        shipped = run_sessions(number, scenario, None, mutant.intensity, mutant.kinds)
        assert not check(shipped), describe_failure(one_schedule(number, scenario, shipped.plan))
        if set(mutant.caught_by) & set(caught):
            return
    pytest.fail(f"not caught in {SCHEDULES_AT_MOST} schedules: {mutant.name}")
