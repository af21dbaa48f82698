"""Each known mistake is caught by a checker, and what ships passes the very same schedules."""

from __future__ import annotations

import pytest

from simulation.campaign import describe_failure, one_schedule
from simulation.checkers import CHECKERS, check
from simulation.mutants import MUTANTS, Mutant
from simulation.schedules import Run, run_schedule

SCHEDULES_AT_MOST = 300


def scheduled(mutant: Mutant, number: int) -> Run:
    scenario = mutant.scenarios[number % len(mutant.scenarios)]
    return run_schedule(number, scenario, intensity=mutant.intensity, kinds=mutant.kinds)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mistake_is_caught(mutant: Mutant) -> None:
    assert set(mutant.caught_by) <= set(CHECKERS)
    for number in range(SCHEDULES_AT_MOST):
        with mutant.patch():
            caught = check(scheduled(mutant, number))
        shipped = scheduled(mutant, number)
        assert not check(shipped), describe_failure(one_schedule(number, shipped.scenario, shipped.plan))
        if set(mutant.caught_by) & set(caught):
            return
    pytest.fail(f"not caught in {SCHEDULES_AT_MOST} schedules: {mutant.name}")
