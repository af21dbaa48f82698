"""Signals to the command line on a server's engine: whatever it was doing there is undone before it ends."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import holdfast
from cli.tools import LONG_TTL, CommandLine
from holdfast.lab.servers import Redis
from support import wait_until
from support.servers import shared_redis

pytestmark = pytest.mark.engine("redis")

SLEEPING = "import signal; print('runs', flush=True); signal.pause()"


@pytest.fixture
def url() -> str:
    shared_redis().commands(("SELECT", "4"), ("FLUSHDB",))
    return f"{shared_redis().url}/4"


@pytest.fixture
def command_line(url: str) -> Iterator[CommandLine]:
    with ExitStack() as stack:
        yield CommandLine(url, stack)


@pytest.fixture
def locks(url: str) -> Iterator[holdfast.Client]:
    with holdfast.connect(url) as client:
        yield client


def test_sigterm_while_it_holds(command_line: CommandLine, locks: holdfast.Client) -> None:
    wrapper = command_line.start("run", "x", "--ttl", LONG_TTL, "--", sys.executable, "-c", SLEEPING)
    wrapper.expect("runs")
    assert [held.pid for held in locks.inspect("x").holders] == [wrapper.pid]
    wrapper.terminate()
    assert wrapper.wait() == 128 + signal.SIGTERM
    assert not locks.inspect("x").locked
    assert wrapper.stderr_lines == []


def test_sigterm_while_it_waits(command_line: CommandLine, locks: holdfast.Client) -> None:
    with locks.lock("x", ttl=float(LONG_TTL)) as lease:
        waiter = command_line.start("run", "x", "--ttl", LONG_TTL, "--", "echo", "ran")
        wait_until(lambda: len(locks.inspect("x").waiters) == 1)
        waiter.terminate()
        assert waiter.wait() == 128 + signal.SIGTERM
        assert waiter.stdout_lines == []
        assert waiter.stderr_lines == []
        assert locks.inspect("x").waiters == ()
        assert [held.token for held in locks.inspect("x").holders] == [lease.token]


def test_a_failed_release_is_not_reported_as_done() -> None:
    """The status is that of the command, which ended while the lock was held."""
    code = """
        import functools, sys
        import holdfast
        from holdfast.cli import main
        holdfast.connect = functools.partial(holdfast.connect, io_timeout=0.3)
        sys.exit(main(["run", "x", "-v", "--", "sh", "-c", "echo runs; read end; exit 7"]))
    """
    with Redis() as server, ExitStack() as stack:
        wrapper = CommandLine(server.url, stack).script(code)
        wrapper.expect("runs")
        server.kill()
        wrapper.send("end")
        assert wrapper.wait() == 7
        assert "could not release 'x', which will expire within 30 s" in wrapper.stderr
        assert "released 'x'" not in wrapper.stderr
