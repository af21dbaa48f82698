"""The benchmarks run: every measurement of every engine, on real servers, with the contestants that are
installed here, at the smallest size.

Nothing is asserted about time. What each measurement asserts itself (that exclusion held) counts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines import (
    BY_SCHEME,
    CELLS,
    COUNTERS,
    EVENTS,
    GROUPS,
    GUARDS,
    IN_MEMORY,
    OWNERSHIP,
    QUEUE,
)
from benchmarks.figures import FIGURES
from benchmarks.measures import MEASURES
from support import run_python

ROOT = Path(__file__).resolve().parent.parent.parent

TIMEOUT_SECONDS = 100.0

SERVERS = {
    **dict.fromkeys((GUARDS, COUNTERS, QUEUE, EVENTS), ("postgresql",)),
    CELLS: ("redis", "postgresql", "etcd", "zookeeper"),
    OWNERSHIP: ("redis", "postgresql"),
}
"""What the groups need that are no engines."""

ENGINES = [
    pytest.param(scheme, marks=pytest.mark.engine(*SERVERS.get(scheme, (scheme.removesuffix(IN_MEMORY),))))
    for scheme in GROUPS
]


def run(results: Path, *arguments: str) -> str:
    with run_python(
        None,
        "--smoke",
        "--results",
        str(results),
        "--folder",
        str(results.parent),
        *arguments,
        module="benchmarks",
        cwd=ROOT,
    ) as child:
        child.close_stdin()
        return child.succeed(TIMEOUT_SECONDS)


def document_of(results: Path, engine: str) -> Any:
    return json.loads((results / engine / "results.json").read_text())


@pytest.mark.parametrize("engine", ENGINES)
def test_every_measurement_runs_and_is_reported(engine: str, tmp_path: Path) -> None:
    results = tmp_path / "results"
    run(results, "--engines", engine)
    document = document_of(results, engine)
    assert not document["failures"]
    assert sorted(document["measures"]) == sorted(GROUPS[engine].measures)
    for name, measured in document["measures"].items():
        subjects = [row for row in measured["rows"] if row["role"] == "subject"]
        assert subjects, name
        assert all(row["metrics"] for row in subjects), name
    assert {target["verdict"] for target in document["targets"]} <= {"reached", "not reached", "not measured"}
    page = (results / engine / "README.md").read_text()
    assert all(measured["title"] in page for measured in document["measures"].values())
    index = (results / "README.md").read_text()
    assert document["title"] in index
    assert all(target["text"] in index for target in document["targets"])
    assert list(tmp_path.iterdir()) == [results], "a run leaves nothing behind"


def test_a_run_can_be_limited(tmp_path: Path) -> None:
    results = tmp_path / "results"
    run(results, "--engines", "memory", "--measures", "pairs,handoff")
    document = document_of(results, "memory")
    # Hand-off is between processes, which the memory engine is not for.
    assert list(document["measures"]) == ["pairs"]
    assert {row["key"] for row in document["measures"]["pairs"]["rows"]} == {
        "holdfast-memory",
        "holdfast-memory-asyncio",
        "threading-lock",
    }


@pytest.mark.parametrize("engine", BY_SCHEME)
def test_groups_name_only_what_there_is(engine: str) -> None:
    group = BY_SCHEME[engine]
    keys = [each.key for each in group.contestants]
    assert len(set(keys)) == len(keys)
    assert set(group.measures) <= set(MEASURES)
    assert set(group.bases) <= set(group.measures)
    assert set(group.bases.values()) <= set(keys)
    assert set(group.notes) <= set(group.measures)
    assert {target.measure for target in FIGURES[engine]} <= set(group.measures)
    assert all(MEASURES[name].those_of(group.contestants) for name in group.measures)
