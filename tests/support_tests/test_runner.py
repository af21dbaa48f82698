"""``tools/run_tests.py``: what is run once more, what is reported, and what fails the run.

Each test has a project of its own, whose tests count how often they were run.
"""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support import Process, run_python, wait_until

RUNNER = Path(__file__).resolve().parent.parent.parent / "tools" / "run_tests.py"

TESTS = """
    import os, pathlib, signal
    import pytest

    def runs(name):
        '''How often this was called for this name, with this call.'''
        with open(name, "a") as file:
            file.write(os.environ.get("PYTEST_XDIST_WORKER", "alone") + "\\\\n")
        return len(pathlib.Path(name).read_text().splitlines())

    def test_steady():
        runs("steady")

    @pytest.mark.realtime
    def test_steady_realtime():
        runs("steady_realtime")
"""

UNSTEADY = """
    @pytest.mark.realtime
    @pytest.mark.parametrize("number", range({count}))
    def test_unsteady(number):
        assert runs(f"unsteady-{{number}}") == 2, f"too late by {{number}} s"
"""


class Project:
    """A folder with tests, and how often each was run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    realtime: x\n    slow: x\n")
        self.said = ""

    def add(self, *tests: str) -> None:
        source = "\n".join(textwrap.dedent(test) for test in (TESTS.replace("\\\\n", "\\n"), *tests))
        (self.folder / "test_it.py").write_text(source)

    @contextmanager
    def running(self, *arguments: str, jobs: int = 0) -> Iterator[Process]:
        """Without the plugins that happen to be installed: they take time to load."""
        options = (f"--jobs={jobs}", "test_it.py", "--", "-p", "xdist", "-p", "no:cacheprovider", *arguments)
        environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_XDIST_WORKER": None}
        with run_python(None, *options, script=RUNNER, env=environment, cwd=self.folder) as process:
            yield process

    def run(self, *arguments: str, jobs: int = 0) -> int:
        with self.running(*arguments, jobs=jobs) as process:
            code = process.wait(60)
            self.said = process.stdout + process.stderr
        return code

    def runs(self, name: str) -> list[str]:
        """By whom, for each time it was run: a worker, or a process without workers."""
        path = self.folder / name
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_all_that_pass_are_run_once(project: Project) -> None:
    project.add()
    assert project.run() == 0, project.said
    assert (project.runs("steady"), project.runs("steady_realtime")) == (["alone"], ["alone"])
    assert "UNSTEADY" not in project.said


def test_what_is_not_realtime_is_never_run_twice(project: Project) -> None:
    project.add("def test_broken(): assert runs('broken') == 2")
    assert project.run() == 1
    assert project.runs("broken") == ["alone"]
    assert project.runs("steady_realtime") == ["alone"], "the others are still of interest"
    assert "1 tests failed that no clock decides" in project.said


def test_a_realtime_test_that_passes_when_run_again_alone_is_unsteady(project: Project) -> None:
    project.add(UNSTEADY.format(count=5))
    assert project.run(jobs=2) == 0, project.said
    for number in range(5):
        assert (
            f"UNSTEADY test_it.py::test_unsteady[{number}]\n  | AssertionError: too late by {number} s"
            in (project.said)
        )
        first, second = project.runs(f"unsteady-{number}")
        assert (first.startswith("gw"), second) == (True, "alone")
    assert len(project.runs("steady")) == len(project.runs("steady_realtime")) == 1, "no other is run twice"
    assert project.said.index("UNSTEADY") > project.said.rindex(" passed")


def test_more_than_five_unsteady_tests_fail_the_run(project: Project) -> None:
    project.add(UNSTEADY.format(count=6))
    assert project.run() == 1
    assert project.said.count("UNSTEADY ") == 6
    assert "6 unsteady tests are more than 5" in project.said


def test_a_realtime_test_that_fails_twice_fails_the_run(project: Project) -> None:
    project.add(
        UNSTEADY.format(count=1),
        "@pytest.mark.realtime\ndef test_broken(): assert runs('broken') > 2, 'always late'",
    )
    assert project.run() == 1
    assert project.runs("broken") == ["alone", "alone"]
    assert "UNSTEADY test_it.py::test_unsteady[0]" in project.said
    assert "UNSTEADY test_it.py::test_broken" not in project.said
    assert "the tests failed: 1 realtime tests failed" in project.said


def test_an_error_while_cleaning_up_is_a_failure_too(project: Project) -> None:
    project.add(
        """
        @pytest.fixture
        def cleaned():
            yield
            assert runs("cleaned") == 2, "left open"

        @pytest.mark.realtime
        def test_that_leaks(cleaned): pass
        """
    )
    assert project.run() == 0, project.said
    assert "UNSTEADY test_it.py::test_that_leaks\n  | AssertionError: left open" in project.said


def test_so_many_failures_that_nothing_is_run_again(project: Project) -> None:
    project.add(UNSTEADY.format(count=21))
    assert project.run() == 1
    assert project.runs("unsteady-0") == ["alone"]
    assert "21 realtime tests failed" in project.said


def test_a_worker_that_crashes_fails_the_run(project: Project) -> None:
    project.add("@pytest.mark.realtime\ndef test_crash(): runs('crash') == 2 or os.abort()")
    assert project.run(jobs=2) == 1
    assert len(project.runs("crash")) == 1
    assert "the tests failed: a worker crashed while running test_it.py::test_crash" in project.said


@pytest.mark.parametrize("jobs", [0, 2])
def test_a_collection_error_fails_the_run(project: Project, jobs: int) -> None:
    project.add("assert runs('collected') > 99")
    assert project.run(jobs=jobs) != 0
    assert "the tests failed: collection error: test_it.py" in project.said
    assert not project.runs("steady_realtime")


def test_an_interrupt_fails_the_run(project: Project) -> None:
    project.add("@pytest.mark.realtime\ndef test_interrupted(): runs('it') == 2 or os.kill(os.getpid(), 2)")
    assert project.run() == 2
    assert project.runs("it") == ["alone"]
    assert "the tests failed: pytest was interrupted" in project.said


def test_an_interrupt_at_the_terminal_ends_everything(project: Project) -> None:
    project.add("def test_that_waits(): runs('it'); signal.pause()")
    with project.running() as process:
        wait_until(lambda: project.runs("it"))
        process.signal_group(signal.SIGINT)
        assert process.wait(60) == 130
        assert "pytest was interrupted" in process.stdout
    assert not project.runs("steady_realtime"), "nothing else is begun"


def test_a_process_that_is_killed_fails_the_run(project: Project) -> None:
    project.add("@pytest.mark.realtime\ndef test_killed(): runs('it') == 2 or os.kill(os.getpid(), 9)")
    assert project.run() != 0
    assert project.runs("it") == ["alone"]
    assert "pytest was ended by SIGKILL" in project.said


def test_stopping_at_the_first_failure_hides_nothing(project: Project) -> None:
    """What comes after it was not run: the run cannot pass, whatever a second try says."""
    project.add(UNSTEADY.format(count=2))
    assert project.run("-x") == 1
    assert "1 tests were not run" in project.said
    project.add("def test_broken(): assert runs('broken') == 2")
    assert project.run("-x") == 1
    assert len(project.runs("steady_realtime")) == 1, "of the first run"


@pytest.mark.parametrize(
    ("arguments", "steady", "realtime"),
    [
        (("-k", "steady and not realtime"), 1, 0),
        (("-k", "steady_realtime"), 0, 1),
        (("-m", "realtime"), 0, 1),
        (("-m", "slow or not realtime"), 1, 0),
        (("-mnot slow",), 1, 1),
    ],
    ids=str,
)
def test_arguments_are_for_pytest(
    project: Project, arguments: tuple[str, ...], steady: int, realtime: int
) -> None:
    """It is enough that one of the two parts has tests."""
    project.add()
    assert project.run(*arguments) == 0, project.said
    assert (len(project.runs("steady")), len(project.runs("steady_realtime"))) == (steady, realtime)


def test_no_tests_at_all_fail_the_run(project: Project) -> None:
    project.add()
    assert project.run("-k", "nothing") == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "no tests were found" in project.said
    assert project.run("--no-such-option") == pytest.ExitCode.USAGE_ERROR
