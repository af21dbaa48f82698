"""Which combinations of engines, drivers and other parameters an ordinary run leaves to a thorough one."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest

from contract.engines import DRIVERS, FRESH_URL, VALKEY
from support import run_python
from support.realtime import TESTS
from support.thorough import BOTH_DRIVERS, VARIABLE, pairwise_cover

CONTRACT = [f"tests/contract/test_{file}.py" for file in ("handover", "queue", "renewal", "rwlock")]


def collect(*arguments: str, thorough: bool = False) -> list[str]:
    environment = {
        "HOLDFAST_TEST_ENGINES": None,
        "PYTEST_XDIST_WORKER": None,
        "PYTEST_ADDOPTS": None,
        VARIABLE: "1" if thorough else None,
    }
    options = ("--collect-only", "-q", "-p", "no:cacheprovider")
    with run_python(
        None, *options, *arguments, module="pytest", env=environment, cwd=TESTS.parent
    ) as process:
        assert process.wait(60) == 0, process.stderr
        return [line for line in process.stdout.splitlines() if "::" in line]


def scenarios_of(tests: list[str]) -> dict[tuple[str, str], set[str]]:
    """(engine, test with its other parameters) → the drivers that tell it."""
    told: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for line in tests:
        test, _, parameters = line.partition("[")
        values = parameters.rstrip("]").split("-")
        schemes = [value for value in values if value in {*FRESH_URL, VALKEY}]
        drivers = [value for value in values if value in DRIVERS]
        if len(schemes) == len(drivers) == 1:
            rest = [value for value in values if value not in {*schemes, *drivers}]
            told[schemes[0], f"{test} {rest}"].add(drivers[0])
    return told


def test_a_scenario_runs_once_for_each_engine_and_each_engine_meets_both_drivers() -> None:
    thorough = scenarios_of(collect(*CONTRACT, thorough=True))
    ordinary = scenarios_of(collect(*CONTRACT))
    assert len(thorough) > 400
    assert ordinary.keys() == thorough.keys(), "every engine is held to the same scenarios"
    of_engine: defaultdict[str, list[str]] = defaultdict(list)
    for (scheme, scenario), drivers in ordinary.items():
        of_engine[scheme] += drivers
        if scheme not in BOTH_DRIVERS:
            assert len(drivers) == 1, (scheme, scenario)
    for scheme, met in of_engine.items():
        for driver in DRIVERS:
            assert met.count(driver) > len(met) / 4, (scheme, driver)


def test_what_takes_seconds_meets_both_drivers_on_memory_alone() -> None:
    for (scheme, scenario), drivers in scenarios_of(collect("-m", "one_driver", *CONTRACT)).items():
        assert len(drivers) == (2 if scheme == "memory" else 1), (scheme, scenario)


def test_what_is_asked_for_by_name_is_run() -> None:
    test = "tests/contract/test_queue.py::test_first_come_first_served"
    both = [f"{test}[etcd-{driver}]" for driver in DRIVERS]
    assert len(collect(*both)) == 1
    for each in both:
        assert collect(each) == [each]
    assert collect("-k", "etcd and threads", test) == both[:1]


def test_a_test_has_the_same_id_wherever_its_collection_begins() -> None:
    """By its id, which the whole run told, it is run once more."""
    contract = TESTS / "contract"
    others = [path for path in TESTS.iterdir() if path != contract and path.suffix in {"", ".py"}]
    others += [path for path in contract.glob("test_*.py") if path.name != "test_queue.py"]
    whole = collect("tests", *(f"--ignore={path}" for path in others if path.name != "conftest.py"))
    assert whole
    assert whole == collect("tests/contract/test_queue.py")
    assert whole[:1] == collect(whole[0])


# --- every pair of values

AXES = {
    "colour": ["red", "green", "blue"],
    "size": ["s", "m", "l"],
    "cut": ["a", "b"],
    "stock": ["yes", "no"],
}
GARMENTS = [dict(zip(AXES, values, strict=True)) for values in itertools.product(*AXES.values())]


def pairs_of(combinations: list[dict[str, str]]) -> set[tuple[tuple[str, str], ...]]:
    return {pair for each in combinations for pair in itertools.combinations(sorted(each.items()), 2)}


def test_a_few_combinations_have_every_pair_of_values() -> None:
    chosen = [GARMENTS[index] for index in pairwise_cover(GARMENTS)]
    assert pairs_of(chosen) == pairs_of(GARMENTS)
    assert 9 <= len(chosen) <= 12 < len(GARMENTS) == 36


def test_pairs_that_do_not_exist_are_not_missed() -> None:
    """Not every value of one parameter comes with every value of another."""
    made = [each for each in GARMENTS if (each["colour"], each["size"]) != ("red", "s")]
    chosen = [made[index] for index in pairwise_cover(made)]
    assert pairs_of(chosen) == pairs_of(made)


@pytest.mark.parametrize(
    ("combinations", "count"),
    [([], 0), ([{}], 1), ([{"a": "1"}, {"a": "2"}], 2), ([{"a": x, "b": y} for x in "12" for y in "12"], 4)],
)
def test_where_there_is_nothing_to_save(combinations: list[dict[str, str]], count: int) -> None:
    assert len(pairwise_cover(combinations)) == count
