"""The tickets family in virtual time: random schedules, the same each time, and mistakes to be caught."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from simulation.campaign import describe_failure, one_schedule, shrunk
from simulation.coverage import TICKETS_ESSENTIAL, missing_cells, unknown_faults, unknown_steps
from simulation.mutants import Mutant
from simulation.tickets_checkers import TICKETS_CHECKERS, check
from simulation.tickets_mutants import TICKETS_MUTANTS
from simulation.tickets_schedules import TICKETS_SCENARIOS, run_tickets, tickets_scenario_of

BATCHES = 8
BATCH = 80
STRUCK_BY = 180
SCHEDULES_AT_MOST = 300


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_promises_are_kept(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        outcome = one_schedule(seed, tickets_scenario_of(seed))
        if outcome.found:
            pytest.fail(describe_failure(shrunk(outcome)), pytrace=False)
        if seed % 20 == 0:
            gc.collect()


@pytest.mark.parametrize("scenario", TICKETS_SCENARIOS)
def test_where_nothing_goes_wrong(scenario: str) -> None:
    run = run_tickets(7, scenario, [])
    assert not check(run)
    assert any(event.__class__.__name__ == "Began" for event in run.world.trace)


@pytest.mark.slow
def test_every_essential_step_is_struck() -> None:
    cells: Counter[tuple[str, str]] = Counter()
    for seed in range(STRUCK_BY):
        scenario = ("tickets tools", "tickets rwlock", "tickets lock")[seed % 3]
        cells.update(run_tickets(seed, scenario, intensity=3.0).world.coverage)
    assert missing_cells(cells, TICKETS_ESSENTIAL) == []
    assert unknown_steps(cells) == set()
    assert unknown_faults(cells) == set()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", TICKETS_MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mistake_is_caught(mutant: Mutant) -> None:
    unaware = set(mutant.caught_by)
    assert unaware <= set(TICKETS_CHECKERS)
    for number in range(SCHEDULES_AT_MOST):
        scenario = mutant.scenarios[number % len(mutant.scenarios)]
        with mutant.patch():
            caught = check(run_tickets(number, scenario, None, mutant.intensity, mutant.kinds))
        shipped = run_tickets(number, scenario, None, mutant.intensity, mutant.kinds)
        assert not check(shipped), describe_failure(one_schedule(number, scenario, shipped.plan))
        unaware -= set(caught)
        if not unaware:
            return
    pytest.fail(f"{mutant.name}: in {SCHEDULES_AT_MOST} schedules not seen by {', '.join(sorted(unaware))}")
