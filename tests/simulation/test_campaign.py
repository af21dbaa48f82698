"""``make sim`` as it is called: in processes of its own, from arguments to the line that replays a run."""

from __future__ import annotations

import shlex

import pytest

from simulation.campaign import ALL_SCENARIOS, campaign_scenario_of
from simulation.coverage import PROTOCOLS
from support import Process, run_python
from tidy.source import ROOT

WITH_A_MISTAKE = """
    import sys
    from simulation.__main__ import main
    from simulation.mutants import MUTANTS
    from simulation.quorum_mutants import QUORUM_MUTANTS
    from simulation.sessions_mutants import SESSIONS_MUTANTS
    from simulation.tickets_mutants import TICKETS_MUTANTS

    planted = sys.argv.pop(1)
    mutants = (*MUTANTS, *QUORUM_MUTANTS, *SESSIONS_MUTANTS, *TICKETS_MUTANTS)
    mutant = next(each for each in mutants if each.name == planted)
    with mutant.patch():
        sys.exit(main())
"""

TIMEOUT_SECONDS = 90.0

AGAIN = "  again: make sim "


def ended(child: Process, status: int) -> str:
    """All that it said."""
    with child:
        assert child.wait(TIMEOUT_SECONDS) == status, child.stdout + child.stderr
        assert child.stderr == ""
        return child.stdout


def simulated(*arguments: str) -> Process:
    return run_python(None, *arguments, module="simulation", cwd=ROOT)


def simulated_with(mistake: str, *arguments: str) -> Process:
    return run_python(WITH_A_MISTAKE, mistake, *arguments, cwd=ROOT)


@pytest.mark.realtime
@pytest.mark.slow
def test_a_campaign_runs_in_several_processes_and_tells_what_it_covered() -> None:
    said = ended(simulated("--schedules", "20", "--processes", "2", "--seed", "3"), 0)
    assert "20 schedules from seed 3, 2 at a time" in said
    assert "0 failed" in said
    rows = [line.split("│") for line in said.splitlines() if "│" in line]
    assert {name for row in rows if (name := row[1].strip())} == set(PROTOCOLS)
    steps = {row[2].strip(): [cell.strip() for cell in row[3:-1]] for row in rows}
    assert set(steps) == {step for each in PROTOCOLS.values() for step in each}
    for step in ("RenewBatch", "node's Acquire", "create", "session opens"):
        assert any(cell != "·" for cell in steps[step]), f"no fault struck {step}: a family did not run"


@pytest.mark.realtime
@pytest.mark.slow
def test_a_campaign_of_one_scenario() -> None:
    said = ended(
        simulated("--schedules", "6", "--processes", "2", "--seed", "3", "--scenario", "tickets guard"), 0
    )
    assert "6 schedules in" in said
    assert "per core" in said
    steps = {line.split("│")[2].strip(): line for line in said.splitlines() if "│" in line}
    assert any(character.isdigit() for character in steps["create"])
    assert not any(character.isdigit() for character in steps["RenewBatch"] + steps["Acquire"])


@pytest.mark.realtime
def test_a_plan_without_a_scenario_is_for_the_one_that_a_campaign_runs() -> None:
    for seed in (5, 6, 7):
        said = ended(simulated("--seed", str(seed), "--plan", "[]"), 0)
        assert said.startswith(f"{campaign_scenario_of(seed)}, seed {seed}: all is well")


def test_every_scenario_has_its_turn() -> None:
    assert {campaign_scenario_of(seed) for seed in range(280)} == set(ALL_SCENARIOS)


@pytest.mark.realtime
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mistake", "seed"),
    [
        pytest.param("dead waiter at the head", 28, id="records"),
        pytest.param("leases counted by the clock on the wall", 36, id="tickets"),
        pytest.param("maximum of per-node INCR", 5, id="quorum"),
        pytest.param("lock left on a session by a timeout", 17, id="sessions"),
    ],
)
def test_a_failure_is_replayed_exactly_by_the_line_that_it_prints(mistake: str, seed: int) -> None:
    """The seed is one that shows the mistake. Without it the same line finds nothing."""
    found = ended(simulated_with(mistake, "--schedules", "2", "--processes", "1", "--seed", str(seed)), 1)
    story = first_failure(found)
    words = dict(word.split("=", 1) for word in shlex.split(story[-1].removeprefix(AGAIN)))
    again = ("--scenario", words["SCENARIO"], "--seed", words["SEED"], "--plan", words["PLAN"])
    assert ended(simulated_with(mistake, *again), 1).splitlines() == story
    assert "all is well" in ended(simulated(*again), 0)


def first_failure(said: str) -> list[str]:
    """The lines of it."""
    lines = said.splitlines()
    end = next(index for index, line in enumerate(lines) if line.startswith(AGAIN))
    begin = max(index for index in range(end) if not lines[index].startswith(" "))
    return lines[begin : end + 1]
