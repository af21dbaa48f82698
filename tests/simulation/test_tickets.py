"""The tickets family in virtual time: random schedules, the same each time, and mistakes to be caught."""

from __future__ import annotations

import gc

import pytest

from simulation.mutants import Mutant
from simulation.plans import dump_plan, shrink
from simulation.schedules import Run
from simulation.tickets_checkers import TICKETS_CHECKERS, check
from simulation.tickets_mutants import TICKETS_MUTANTS
from simulation.tickets_schedules import TICKETS_SCENARIOS, run_tickets

BATCHES = 8
BATCH = 80
SCHEDULES_AT_MOST = 300


def told(run: Run, found: dict[str, list[str]]) -> str:
    """What is wrong, with as little going wrong as it needs."""
    plan = shrink(
        run.plan, lambda part: bool(set(found) & set(check(run_tickets(run.seed, run.scenario, part))))
    )
    lines = [f"{run.scenario}, seed {run.seed}:"]
    lines += [f"  {checker}: {wrong[0]} ({len(wrong)} in all)" for checker, wrong in found.items()]
    lines += [f"    {fault}" for fault in plan]
    return "\n".join([*lines, f"  run_tickets({run.seed}, {run.scenario!r}, load_plan('{dump_plan(plan)}'))"])


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_promises_are_kept(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        run = run_tickets(seed)
        found = check(run)
        if found:
            pytest.fail(told(run, found), pytrace=False)
        if seed % 20 == 0:
            gc.collect()


@pytest.mark.parametrize("scenario", TICKETS_SCENARIOS)
def test_where_nothing_goes_wrong(scenario: str) -> None:
    run = run_tickets(7, scenario, [])
    assert not check(run)
    assert any(event.__class__.__name__ == "Began" for event in run.world.trace)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", TICKETS_MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mistake_is_caught(mutant: Mutant) -> None:
    assert set(mutant.caught_by) <= set(TICKETS_CHECKERS)
    for number in range(SCHEDULES_AT_MOST):
        scenario = mutant.scenarios[number % len(mutant.scenarios)]
        with mutant.patch():
            caught = check(run_tickets(number, scenario, None, mutant.intensity, mutant.kinds))
        shipped = run_tickets(number, scenario, None, mutant.intensity, mutant.kinds)
        found = check(shipped)
        assert not found, told(shipped, found)
        if set(mutant.caught_by) & set(caught):
            return
    pytest.fail(f"not caught in {SCHEDULES_AT_MOST} schedules: {mutant.name}")
