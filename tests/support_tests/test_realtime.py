"""What a test that is not ``realtime`` is refused, and which tests are ``realtime``."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from support import Process, run_python, wait_until
from support.realtime import PLACES, TESTS, UsedRealTime, refusing
from support.servers import shared_redis

ROOT = TESTS.parent
CHILD = [sys.executable, "-c", ""]


def sleep() -> None:
    wait_until(lambda: False, timeout=1)


def begin_thread() -> None:
    threading.Thread(target=int).start()


def begin_process() -> None:
    subprocess.run(CHILD, check=True)


def fork() -> None:
    if not os.fork():
        os._exit(0)


def spawn() -> None:
    os.posix_spawn(sys.executable, CHILD, {})


def connect() -> None:
    with socket.create_connection(("127.0.0.1", 1)):
        pass


USES: dict[Callable[[], object], str] = {
    sleep: "slept",
    begin_thread: "started a thread",
    begin_process: "started a process",
    fork: "forked",
    spawn: "started a process",
    connect: "opened a socket",
    shared_redis: "used a server",
}


@pytest.mark.parametrize("use", USES)
def test_what_depends_on_the_machine_is_refused(use: Callable[[], object]) -> None:
    with pytest.raises(UsedRealTime, match=USES[use]) as refusal, refusing():
        use()
    assert "pytest.mark.realtime" in str(refusal.value)


def test_it_is_allowed_before_and_after() -> None:
    begin_process()
    with refusing():
        pass
    begin_process()


def test_code_that_catches_everything_does_not_hide_it() -> None:
    def careless() -> None:
        with contextlib.suppress(BaseException):
            begin_thread()

    with pytest.raises(UsedRealTime, match="started a thread"), refusing():
        careless()


def test_what_other_threads_do_is_not_the_tests_doing() -> None:
    """Those of earlier tests, and of pytest's own plugins."""
    go, done = threading.Event(), threading.Event()

    def other() -> None:
        go.wait(10)
        begin_process()
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with refusing():
        go.set()
        assert done.wait(60)
    thread.join()


def test_hypothesis_measures_no_time() -> None:
    assert settings().deadline is None


WITH_THE_SUITES_HOOKS = """
    import asyncio, threading
    import pytest

    def begin():
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()

    @pytest.fixture
    def setting_up():
        begin()

    @pytest.fixture
    def tearing_down():
        yield
        begin()

    def test_timed(): begin()

    def test_hidden():
        try: begin()
        except BaseException: pass

    def test_setup(setting_up): pass

    def test_teardown(tearing_down): pass

    @pytest.mark.realtime
    def test_marked(setting_up, tearing_down): begin()

    def test_loop(): asyncio.run(asyncio.sleep(0))

    def test_free(): pass
"""


def pytest_process(folder: Path, *arguments: str) -> Process:
    """With the hooks of this suite, wherever the tests are."""
    options = ("-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", "-q", *arguments)
    environment = {"PYTEST_XDIST_WORKER": None, "PYTEST_ADDOPTS": None}
    return run_python(None, *options, module="pytest", env=environment, cwd=folder)


def test_a_test_that_is_not_realtime_fails_when_it_or_its_fixtures_use_real_time(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(textwrap.dedent(WITH_THE_SUITES_HOOKS))
    with pytest_process(ROOT, "-p", "conftest", "-W", "ignore", str(file)) as process:
        assert process.wait(60) == 1, process.stderr
        told = process.stdout
    assert "this test started a thread, but is not marked `realtime`" in told
    assert "3 failed, 3 passed, 2 errors" in told
    reported = {line.partition(" - ")[0].split("::")[-1] for line in told.splitlines() if " - " in line}
    assert {"test_timed", "test_hidden", "test_loop", "test_setup", "test_teardown"} <= reported


def test_the_places_exist() -> None:
    assert [place for place in PLACES if not (TESTS / place).exists()] == []


def test_a_place_and_a_mark_make_a_test_realtime(tmp_path: Path) -> None:
    files = (
        "tests/fencing/test_processes.py",
        "tests/fencing/test_rule.py",
        "tests/rules/test_cases.py",
        "tests/lab/test_proxy.py",
        "tests/tidy/test_public_names.py",
    )
    chosen: dict[str, set[str]] = {}
    for expression in ("realtime", "not realtime"):
        with pytest_process(ROOT, "--collect-only", "-m", expression, *files) as process:
            assert process.wait(60) == 0, process.stderr
            chosen[expression] = {line for line in process.stdout.splitlines() if "::" in line}
    timed, free = chosen["realtime"], chosen["not realtime"]
    assert not timed & free
    assert {line.partition("::")[0] for line in free - timed} == {
        "tests/fencing/test_rule.py",
        "tests/rules/test_cases.py",
        "tests/tidy/test_public_names.py",
    }
    assert {line.partition("::")[0] for line in timed} == {
        "tests/fencing/test_processes.py",
        "tests/lab/test_proxy.py",
        "tests/tidy/test_public_names.py",
    }


MIXED = """
    import pytest

    @pytest.mark.{outer}
    class TestMixed:
        @pytest.mark.{inner}
        def test_it(self): pass
"""


@pytest.mark.parametrize(("outer", "inner"), [("realtime", "timeless"), ("timeless", "realtime")])
def test_a_mark_may_add_real_time_but_not_take_it_back(tmp_path: Path, outer: str, inner: str) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(textwrap.dedent(MIXED.format(outer=outer, inner=inner)))
    with pytest_process(ROOT, "-p", "conftest", "-m", "realtime", str(file)) as process:
        refused = process.wait(60) == pytest.ExitCode.USAGE_ERROR
        told = process.stdout + process.stderr
    assert refused == (inner == "timeless"), told
    assert ("1 passed" in told) != refused
