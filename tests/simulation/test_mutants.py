"""Each known mistake is caught by a checker, and what ships passes the very same schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from simulation.campaign import describe_failure, one_schedule
from simulation.checkers import CHECKERS, check
from simulation.mutants import MUTANTS, Mutant
from simulation.quorum_checkers import QUORUM_CHECKERS
from simulation.quorum_mutants import QUORUM_MUTANTS, QuorumMutant
from simulation.schedules import Run, run_schedule
from simulation.tickets_checkers import TICKETS_CHECKERS
from simulation.tickets_mutants import TICKETS_MUTANTS

Checkers = Mapping[str, Callable[[Any], Iterator[str]]]

SCHEDULES_AT_MOST = 300


def scheduled(mutant: Mutant, number: int) -> Run:
    scenario = mutant.scenarios[number % len(mutant.scenarios)]
    return run_schedule(number, scenario, intensity=mutant.intensity, kinds=mutant.kinds)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mistake_is_caught(mutant: Mutant) -> None:
    unaware = set(mutant.caught_by)
    assert unaware <= set(CHECKERS)
    for number in range(SCHEDULES_AT_MOST):
        with mutant.patch():
            caught = check(scheduled(mutant, number))
        shipped = scheduled(mutant, number)
        assert not check(shipped), describe_failure(one_schedule(number, shipped.scenario, shipped.plan))
        unaware -= set(caught)
        if not unaware:
            return
    pytest.fail(f"{mutant.name}: in {SCHEDULES_AT_MOST} schedules not seen by {', '.join(sorted(unaware))}")


@pytest.mark.parametrize(
    ("checkers", "mutants"),
    [
        pytest.param(CHECKERS, MUTANTS, id="records"),
        pytest.param(TICKETS_CHECKERS, (*MUTANTS, *TICKETS_MUTANTS), id="tickets"),
        pytest.param(QUORUM_CHECKERS, (*MUTANTS, *QUORUM_MUTANTS), id="quorum"),
    ],
)
def test_every_checker_is_proved_by_a_mistake_that_it_sees(
    checkers: Checkers, mutants: Sequence[Mutant | QuorumMutant]
) -> None:
    """By one of its own family, unless it is the very checker that sees one in the records."""
    proved = {
        (CHECKERS if mutant in MUTANTS else checkers)[name] for mutant in mutants for name in mutant.caught_by
    }
    assert {name for name, checker in checkers.items() if checker not in proved} == set()
