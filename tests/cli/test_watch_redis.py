"""``holdfast watch`` and a server that goes away: it says so, stays, and goes on."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import holdfast
from cli.tools import CommandLine, at_a_terminal
from holdfast.lab.servers import Redis
from support import Process, wait_until

pytestmark = [pytest.mark.engine("redis"), pytest.mark.slow]


@pytest.fixture
def server() -> Iterator[Redis]:
    with Redis() as server:
        yield server


@pytest.fixture
def command_line(server: Redis) -> Iterator[CommandLine]:
    with ExitStack() as stack:
        yield CommandLine(server.url, stack)


def names_held(watching: Process) -> list[str]:
    return [holder["owner"] for holder in json.loads(watching.expect())["holders"]]


def test_an_outage_is_reported_and_outlasted(command_line: CommandLine, server: Redis) -> None:
    watching = command_line.start("watch", "--json", "x")
    assert names_held(watching) == []
    server.stop()
    wait_until(lambda: "(still watching)" in watching.stderr, timeout=30.0)
    assert "cannot be reached" in watching.stderr
    assert watching.running
    server.start()
    wait_until(lambda: "the engine can be reached again" in watching.stderr, timeout=30.0)
    with holdfast.connect(server.url) as locks:
        with locks.lock("x") as lease:
            assert names_held(watching) == [lease.owner]
        assert names_held(watching) == []
    watching.interrupt()
    assert watching.wait() == 128 + signal.SIGINT
    assert len(watching.stderr_lines) == 2, "each said once"


def test_a_table_says_that_it_is_old(command_line: CommandLine, server: Redis) -> None:
    arguments = ("-m", "holdfast", "watch", "x")
    session = at_a_terminal(command_line, "env", "TERM=xterm", "NO_COLOR=1", sys.executable, *arguments)
    wait_until(lambda: "0 held" in session.stdout)
    server.stop()
    wait_until(lambda: "Last known state: the engine cannot be reached" in session.stdout, timeout=30.0)
    session.send("^C")
    assert session.expect("status", 30.0) == "130"


def test_a_server_that_is_not_there_to_begin_with(command_line: CommandLine, server: Redis) -> None:
    server.stop()
    watching = command_line.finish("watch", "x")
    assert watching.returncode == 69
    assert "cannot be reached" in watching.stderr
