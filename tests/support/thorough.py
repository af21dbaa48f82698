"""How much an ordinary run tests, and how much a thorough one (``HOLDFAST_TEST_THOROUGH=1``).

A thorough run (``make test-all``) takes every combination of a test's parameters, more examples of each
property, and every point of a sweep. An ordinary run takes of each test

* **one driver for each engine**, where its parameters are called ``scheme`` and ``driver``: a scenario of the
  contract is told by threads on some engines and by asyncio on the others, and by both on ``BOTH_DRIVERS``.
  Every engine meets both drivers, in different tests. A test marked ``one_driver``, which waits for seconds,
  meets both on ``memory`` alone.
* **every pair of values**, where it is marked ``pairwise``: as few combinations as contain each value of each
  parameter together with each value of every other one.

The choice depends on the names of the tests alone, so it is the same on every machine and in every worker. It
is made last of all: what is asked for by its id or by ``-k`` runs, unless its siblings were asked for too.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import pytest

__all__ = [
    "BOTH_DRIVERS",
    "THOROUGH",
    "VARIABLE",
    "deselect_combinations",
    "examples",
    "pairwise_cover",
    "parameters_of",
]

VARIABLE: Final = "HOLDFAST_TEST_THOROUGH"

THOROUGH: Final = os.environ.get(VARIABLE, "") not in {"", "0"}

BOTH_DRIVERS: Final = frozenset({"memory", "redis"})
"""The engine without I/O, and one with a server: the contract is met there by threads and by asyncio."""

EXAMPLES_TIMES: Final = 4

Combination = Mapping[str, str]
"""Parameter → its value, for one item of a test."""


def examples(ordinary: int) -> int:
    """How many examples Hypothesis tries of a property: for ``@settings(max_examples=examples(…))``."""
    return ordinary * EXAMPLES_TIMES if THOROUGH else ordinary


def deselect_combinations(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For ``pytest_collection_modifyitems``, after everything else has chosen."""
    if THOROUGH:
        return
    chosen = set(map(id, _of_one_driver(_of_pairs(items))))
    dropped = [item for item in items if id(item) not in chosen]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if id(item) in chosen]


# --- one of two drivers


def _of_one_driver(items: Iterable[pytest.Item]) -> Iterable[pytest.Item]:
    """Of items that differ in their driver alone, one: which one differs by test and by engine."""
    items = list(items)
    for siblings in _grouped(items, _but_for_its_driver).values():
        combination = parameters_of(siblings[0])
        if "driver" not in combination or not _is_told_once(siblings[0], combination):
            yield from siblings
        else:
            yield siblings[zlib.crc32(_but_for_its_driver(siblings[0]).encode()) % len(siblings)]


def _is_told_once(item: pytest.Item, combination: Combination) -> bool:
    scheme = combination.get("scheme")
    if item.get_closest_marker("one_driver") is not None:
        return scheme != "memory"
    return scheme is not None and scheme not in BOTH_DRIVERS


def _but_for_its_driver(item: pytest.Item) -> str:
    test, _, values = item.nodeid.partition("[")
    driver = parameters_of(item).get("driver", "")
    return " ".join([test, *(value for value in values.rstrip("]").split("-") if value != driver)])


# --- every pair of values


def _of_pairs(items: Iterable[pytest.Item]) -> Iterable[pytest.Item]:
    items = list(items)
    for siblings in _grouped(items, _test_of).values():
        if siblings[0].get_closest_marker("pairwise") is None:
            yield from siblings
        else:
            yield from (siblings[index] for index in pairwise_cover(list(map(parameters_of, siblings))))


def pairwise_cover(combinations: Sequence[Combination]) -> list[int]:
    """The places of a few that contain every pair of values that any of them contains.

    Greedy, so not always the fewest."""
    missing = [_pairs_of(each) for each in combinations]
    chosen: list[int] = []
    while True:
        most = max(range(len(missing)), key=lambda index: (len(missing[index]), -index), default=-1)
        if most < 0 or not missing[most]:
            return sorted(chosen)
        chosen.append(most)
        covered = frozenset(missing[most])
        for pairs in missing:
            pairs.difference_update(covered)


def _pairs_of(combination: Combination) -> set[tuple[tuple[str, str], ...]]:
    """Where there is one parameter only, its values."""
    return set(itertools.combinations(sorted(combination.items()), min(2, len(combination))))


# --- items


def _grouped(
    items: Iterable[pytest.Item], key: Callable[[pytest.Item], str]
) -> Mapping[str, list[pytest.Item]]:
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


def _test_of(item: pytest.Item) -> str:
    """The test, without its parameters."""
    return item.nodeid.partition("[")[0]


def parameters_of(item: pytest.Item) -> Combination:
    """Parameter → a text that tells its values apart, in this process.

    Where no parameter is called ``driver``, it is what a ``world`` is made for."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return {}
    found = {
        name: value if isinstance(value, str) else f"#{id(value)}"
        for name, value in item.callspec.params.items()
    }
    if "driver" not in found and "world" in found:
        found["driver"] = found.pop("world")
    return found
