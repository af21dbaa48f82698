"""Runs the tests: first those that no clock decides, then those marked ``realtime``.

    python tools/run_tests.py [--jobs N] TESTS … [-- ARGUMENTS FOR PYTEST …]

1. Every test that is not marked ``realtime``, in N processes.
2. The tests marked ``realtime``, in N processes, and never in more than two for each processor core:
   they wait more than they compute.
3. Each ``realtime`` test that failed is run once more, alone: one process, one test after the other.

A ``realtime`` test that passes when it is run once more is *unsteady*. The run closes with a list of the
unsteady tests and their first errors; more than five of them fail the run. No other test is run twice: a test
that is not ``realtime``, a collection error, a worker that crashed and an interrupt fail the run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

UNSTEADY_MAX: Final = 5
"""More unsteady tests than this fail the run."""

RERUN_MAX: Final = 20
"""More failures than this are no matter of luck: the run fails, and nothing is run once more."""

ERROR_LINES_MAX: Final = 12
"""So much of its first error is shown beside an unsteady test; pytest has shown the whole."""

INTERRUPTED: Final = 130
PATIENCE_SECONDS: Final = 30.0
"""How long an interrupted pytest may take to end before it is interrupted once more, then killed."""

RECORD: Final = "--record"
"""As the first argument: run pytest in this process, and write what it reported to the file that follows."""


@dataclass
class Report:
    """What one pytest run reported, beside its exit code."""

    collected: int = 0
    finished: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """Test → its first error."""
    broken: list[str] = field(default_factory=list)
    """What is no failure of one test: a collection error, a worker that crashed."""
    stops_early: bool = False
    """Whether ``-x`` or ``--maxfail`` was given."""


class Recorder:
    """A pytest plugin that fills a report, with workers and without."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._report = Report()
        self._collected: set[str] = set()

    def pytest_configure(self, config: pytest.Config) -> None:
        self._report.stops_early = bool(config.getoption("maxfail", 0))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._collected.update(ids)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._report.broken.append(f"collection error: {report.nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when not in {"setup", "call", "teardown"}:  # xdist made it up for a worker that crashed
            self._report.broken.append(f"a worker crashed while running {report.nodeid}")
        elif report.failed:
            self._report.failures.setdefault(report.nodeid, error_of(report))
        elif report.when == "call" and report.passed:
            self._report.passed.append(report.nodeid)
        if report.when == "teardown":
            self._report.finished.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._report.collected = len(self._collected)
        self._path.write_text(json.dumps(asdict(self._report)), "utf-8")


def error_of(report: pytest.TestReport) -> str:
    """Its message; without one (a time limit, a plain text) the end of what was reported."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message) if crash is not None else report.longreprtext.strip()


@dataclass(frozen=True)
class Outcome:
    """How one pytest run ended."""

    code: int
    report: Report

    @property
    def found_nothing(self) -> bool:
        return self.code == pytest.ExitCode.NO_TESTS_COLLECTED and not self.report.broken

    @property
    def trouble(self) -> str:
        """Why this run says nothing about its tests, beyond those that failed; empty if it does."""
        if self.report.broken:
            return "; ".join(line.splitlines()[0] for line in self.report.broken)
        if self.code < 0:
            return f"pytest was ended by {signal.Signals(-self.code).name}"
        if self.code in {INTERRUPTED, pytest.ExitCode.INTERRUPTED}:
            return "pytest was interrupted"
        if self.code == 0 or self.found_nothing:
            return ""
        if self.code != pytest.ExitCode.TESTS_FAILED or not self.report.failures:
            return f"pytest ended with code {self.code}"
        missing = self.report.collected - len(set(self.report.finished))
        return f"{missing} tests were not run" if missing > 0 else ""

    @property
    def ends_the_run(self) -> bool:
        """An interrupt, a usage error, or a failure where the first one was to end it all."""
        ordinary = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED}
        return self.code not in ordinary or (
            self.code != 0 and bool(self.report.failures) and self.report.stops_early
        )


class Run:
    """All phases of one run of the tests."""

    def __init__(self, jobs: int, tests: Sequence[str], arguments: Sequence[str]) -> None:
        self._jobs = jobs
        self._tests = list(tests)
        self._expression, self._arguments = split_expression(arguments)

    def execute(self) -> int:
        """The exit code."""
        cores = len(os.sched_getaffinity(0))
        first = self._phase("tests that no clock decides", "not realtime", self._jobs, self._tests)
        if first.ends_the_run:
            return close([first.trouble or "a test failed"], {}, first.code)
        second = self._phase("realtime tests", "realtime", min(self._jobs, 2 * cores), self._tests)
        if first.found_nothing and second.found_nothing:
            return close(["no tests were found"], {}, second.code)
        reasons = [first.trouble] if first.trouble else []
        if first.report.failures:
            reasons.append(f"{len(first.report.failures)} tests failed that no clock decides")
        return self._once_more(second, reasons)

    def _once_more(self, second: Outcome, reasons: list[str]) -> int:
        """What failed of the realtime tests, if all else about them is known."""
        failed = second.report.failures
        if second.trouble:
            reasons.append(second.trouble)
        if second.trouble or len(failed) > RERUN_MAX:
            return close([*reasons, *tell(failed)], {}, second.code)
        if not failed:
            return close(reasons, {})
        third = self._phase(f"once more, alone: {len(failed)} realtime tests", "realtime", 0, list(failed))
        passed = set(third.report.passed) - set(third.report.failures)
        if third.trouble:
            reasons.append(third.trouble)
        reasons += tell([test for test in failed if test not in passed])
        return close(reasons, {test: failed[test] for test in failed if test in passed}, third.code)

    def _phase(self, title: str, expression: str, jobs: int, tests: Sequence[str]) -> Outcome:
        print(f"-- {title} ({max(jobs, 1)} at once) --", flush=True)
        if self._expression:
            expression = f"{expression} and ({self._expression})"
        options = [*self._arguments, "-m", expression, "-n", str(jobs), "--dist", "worksteal"]
        return run_pytest([*options, *tests])


def tell(failed: Collection[str]) -> list[str]:
    return [f"{len(failed)} realtime tests failed"] if failed else []


def close(reasons: list[str], unsteady: dict[str, str], code: int = 1) -> int:
    """Say at the end what is unsteady and why the run failed, if it did. The exit code."""
    if unsteady:
        print(
            f"\n-- {len(unsteady)} unsteady: failed, then passed when run once more, alone; to be mended --"
        )
    for test, error in unsteady.items():
        print(f"UNSTEADY {test}")
        print("".join(f"  | {line}\n" for line in error.splitlines()[:ERROR_LINES_MAX]), end="")
    if len(unsteady) > UNSTEADY_MAX:
        reasons = [*reasons, f"{len(unsteady)} unsteady tests are more than {UNSTEADY_MAX}"]
    if not reasons:
        return 0
    print(f"\n-- the tests failed: {'; '.join(reasons)} --", flush=True)
    return max(code, 1)


def split_expression(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """What ``-m`` says, which is to be joined with ours, and the other arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-m", default="")
    known, others = parser.parse_known_args(arguments)
    return str(known.m), others


def run_pytest(arguments: Sequence[str]) -> Outcome:
    """In a process of its own: modules, servers and signals of one run are nothing to the next."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        child = subprocess.Popen([sys.executable, __file__, RECORD, str(path), *arguments])
        code = wait_for(child)
        written: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return Outcome(code, Report(**written))


def wait_for(child: subprocess.Popen[bytes]) -> int:
    try:
        return child.wait()
    except KeyboardInterrupt:  # the terminal has interrupted pytest as well: it ends by itself
        for number in (signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(PATIENCE_SECONDS)
                break
            child.send_signal(number)
        child.wait()
        return INTERRUPTED


def record(path: Path, arguments: Sequence[str]) -> int:
    return int(pytest.main(list(arguments), plugins=[Recorder(path)]))


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == [RECORD]:
        return record(Path(arguments[1]), arguments[2:])
    own, others = list(arguments), []
    if "--" in own:
        own, others = own[: own.index("--")], own[own.index("--") + 1 :]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=0, help="processes at once; 0 runs all in one")
    parser.add_argument("tests", nargs="+", help="what pytest is to collect")
    chosen = parser.parse_args(own)
    return Run(chosen.jobs, chosen.tests, others).execute()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
