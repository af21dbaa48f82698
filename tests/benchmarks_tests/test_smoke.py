"""The benchmarks run: every measurement, with the contestants that are installed here, at the smallest size.

Nothing is asserted about time. What each measurement asserts itself (that exclusion held) counts.
"""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.measures import MEASURES
from support import run_python

ROOT = Path(__file__).resolve().parent.parent.parent

TIMEOUT_SECONDS = 100.0


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


def test_every_measurement_runs_and_is_reported(tmp_path: Path) -> None:
    results = tmp_path / "results"
    run(results)
    document = json.loads((results / "results.json").read_text())
    assert not document["failures"]
    assert list(document["measures"]) == list(MEASURES)
    for name, measured in document["measures"].items():
        subjects = [row for row in measured["rows"] if row["role"] == "subject"]
        assert subjects, name
        assert all(row["metrics"] for row in subjects), name
    assert {target["verdict"] for target in document["targets"]} <= {"reached", "not reached", "not measured"}
    report = (results / "README.md").read_text()
    assert all(measured["title"] in report for measured in document["measures"].values())
    assert list(tmp_path.iterdir()) == [results], "a run leaves nothing behind"


def test_a_run_can_be_limited(tmp_path: Path) -> None:
    results = tmp_path / "results"
    run(results, "--engines", "memory", "--measures", "pairs,handoff")
    document = json.loads((results / "results.json").read_text())
    # Hand-off is between processes, which the memory engine is not for.
    assert list(document["measures"]) == ["pairs"]
    assert {row["key"] for row in document["measures"]["pairs"]["rows"]} == {
        "holdfast-memory",
        "holdfast-memory-asyncio",
        "threading-lock",
    }
