"""The simulation itself: the same seed is the same world, plans shrink, failures can be replayed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter, defaultdict
from typing import Any
from unittest import mock

import pytest

from holdfast.core.arguments import Spec
from simulation.campaign import Outcome, describe_failure, one_schedule, shrunk
from simulation.coverage import missing_cells, unknown_faults, unknown_steps
from simulation.mutants import MUTANTS
from simulation.plans import dump_plan, load_plan, make_plan, shrink
from simulation.schedules import run_schedule
from simulation.workloads import SCENARIOS, Worker
from simulator import Changed, Clock, Fault, Interrupted, Link, Livelock, World
from tidy.source import ROOT

DIGEST = """
import hashlib, logging, sys
logging.disable(logging.CRITICAL)
sys.path.insert(0, "tests")
from simulation.test_driver import digest
for scenario in sys.argv[2:]:
    print(digest(int(sys.argv[1]), scenario))
"""


def digest(seed: int, scenario: str) -> str:
    run = run_schedule(seed, scenario)
    reported = [
        (type(event).__name__, event.at, event[1:4] if isinstance(event, Changed) else ())
        for event in run.world.trace
    ]
    return hashlib.sha256(repr(reported).encode()).hexdigest()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_same_seed_is_the_same_world(scenario: str) -> None:
    here = digest(11, scenario)
    assert digest(11, scenario) == here
    assert digest(12, scenario) != here


@pytest.mark.realtime
def test_the_same_seed_is_the_same_world_in_another_process() -> None:
    """There sets are in another order."""
    there = subprocess.run(
        [sys.executable, "-c", DIGEST, "11", *SCENARIOS],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.split() == [digest(11, scenario) for scenario in SCENARIOS]


TROUBLES = [
    Fault(0.4, "loss", -1, 6.0, 0.3),
    Fault(1.0, "pause", 0, 3.0),
    Fault(2.0, "interrupt", 1, 0.0, 3.0),
    Fault(3.0, "node crash", 0, 1.0),
    Fault(5.0, "crash", 2, 0.5),
]

Wishes = dict[tuple[str, str, int], list[Spec]]


def wishes(scenario: str, plan: list[Fault]) -> Wishes:
    """(client, worker, round) → what it wanted to lock, and how, in order."""
    wished: Wishes = defaultdict(list)
    shipped = Worker.spec

    def spec(self: Worker, *arguments: Any, **given: Any) -> Spec:
        wish = shipped(self, *arguments, **given)
        wished[self.client.id, self.task.label, self.round].append(wish)
        return wish

    with mock.patch.object(Worker, "spec", spec):
        run_schedule(3, scenario, plan)
    return wished


@pytest.mark.parametrize("scenario", ["lock", "rlock", "rwlock", "several", "semaphore"])
def test_what_goes_wrong_does_not_change_what_the_workers_intend(scenario: str) -> None:
    undisturbed, disturbed = wishes(scenario, []), wishes(scenario, TROUBLES)
    both = undisturbed.keys() & disturbed.keys()
    assert len(both) > 20
    for key in both:
        # Who did not get the first may not come to wish for more.
        for one, other in zip(undisturbed[key], disturbed[key], strict=False):
            assert one == other, key
    assert undisturbed != disturbed, "nothing went wrong at all"


def test_plans_are_data() -> None:
    world = World("x")
    plan = make_plan(world.stream("faults"), 3.0)
    assert plan
    assert load_plan(dump_plan(plan)) == plan
    assert all(str(fault) for fault in plan)


def test_shrinking_leaves_what_is_needed_and_nothing_else() -> None:
    plan = [Fault(float(n), "pause", n % 4, 1.0) for n in range(12)]
    needed = {plan[3], plan[7], plan[8]}
    assert set(shrink(plan, lambda part: needed <= set(part))) == needed
    assert shrink(plan, lambda part: True) == []


def test_a_failure_is_shrunk_and_printed_with_the_command_that_replays_it() -> None:
    mutant = next(m for m in MUTANTS if m.name == "dead waiter at the head")
    with mutant.patch():
        failure = next(found for seed in range(60) if (found := one_schedule(seed, "lock")).found)
        small = shrunk(failure)
        assert set(small.found) & set(failure.found)
        assert len(small.plan) <= len(failure.plan)
        reported = describe_failure(small)
        assert f"SEED={small.seed} PLAN='{dump_plan(small.plan)}'" in reported
        again: Outcome = one_schedule(small.seed, small.scenario, load_plan(dump_plan(small.plan)))
    assert again.found == small.found


def test_going_round_in_circles_is_noticed() -> None:
    world = World("x")

    def again() -> None:
        world.at(world.now, again)

    again()
    with pytest.raises(Livelock):
        world.run(1.0)


def test_clocks_drift_and_are_set() -> None:
    clock = Clock(100.0, 1.01)
    assert clock.when(clock.read(7.0)) == pytest.approx(7.0)
    clock.jump(-3.0)
    assert clock.read(0.0) == 97.0


def test_links_do_what_their_faults_say() -> None:
    world = World("x")
    link = Link(world.stream("network"))
    assert not link.troubled
    lossy = Fault(0.0, "loss", 0, 5.0, 1.0)
    link.begin(lossy, 5.0)
    assert link.fate(True, 1.0) == ([], ["loss"])
    link.end(lossy)
    one_way = Fault(0.0, "partition-in", 0, 5.0)
    link.begin(one_way, 5.0)
    assert link.fate(True, 1.0)[1] == []
    delays, hits = link.fate(False, 1.0)
    assert hits == ["partition"]
    assert all(delay > 4.0 for delay in delays)
    link.end(one_way)
    link.begin(Fault(0.0, "duplicate", 0, 5.0, 1.0), 5.0)
    assert len(link.fate(True, 1.0)[0]) == 2


def test_an_interrupt_is_no_error_of_the_library() -> None:
    assert not issubclass(Interrupted, Exception)


@pytest.mark.slow
def test_every_essential_step_is_struck() -> None:
    cells: Counter[tuple[str, str]] = Counter()
    scenarios = ("tools", "several", "rwlock", "tools", "lock")
    for seed in range(300):
        run = run_schedule(seed, scenarios[seed % len(scenarios)], intensity=3.0)
        cells.update(run.world.coverage)
    assert missing_cells(cells) == []
    assert unknown_steps(cells) == set()
    assert unknown_faults(cells) == set()
