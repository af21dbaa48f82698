"""``holdfast watch``: changes appear as they happen, and while nothing changes it does nothing."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from cli.tools import CommandLine, at_a_terminal
from support import Process, stays_true

HOLD = """
import holdfast
lease = holdfast.connect().lock("x", ttl=60).acquire()
print("held", flush=True)
input()
"""
WATCH_BY_SUBSCRIPTION = """
import sys
from holdfast.cli import main, watch_observer
from holdfast.protocols.records import subscription

# With such long intervals, changes are seen in time only by subscription.
watch_observer.POLL_SECONDS = subscription.POLL_SECONDS_MAX = 600.0
sys.exit(main(["watch", *sys.argv[1:]]))
"""
IDLE_SECONDS = 3.0
MOST_CPU_SECONDS = 0.3
MOST_WAKE_UPS = 150
"""Generous on a busy machine. A loop that polls every few milliseconds wakes up a thousand times."""


def next_change(watching: Process) -> dict[str, Any]:
    change: dict[str, Any] = json.loads(watching.expect())
    return change


def counts(change: dict[str, Any]) -> tuple[str, bool, int, int]:
    return change["name"], change["locked"], len(change["holders"]), len(change["waiters"])


def test_every_change_is_a_json_document(command_line: CommandLine, locks: holdfast.Client) -> None:
    watching = command_line.script(WATCH_BY_SUBSCRIPTION, "--json", "x")
    assert counts(next_change(watching)) == ("x", False, 0, 0), "what is there comes first"

    lease = locks.lock("x", metadata={"for": "test"}).acquire() or pytest.fail("not granted")
    held = next_change(watching)
    assert counts(held) == ("x", True, 1, 0)
    (holder,) = held["holders"]
    assert (holder["pid"], holder["token"]) == (os.getpid(), lease.token)
    assert holder["metadata"] == {"for": "test"}

    waiter = command_line.start("run", "x", "--", sys.executable, "-c", "input()")
    waited = next_change(watching)
    assert counts(waited) == ("x", True, 1, 1)
    assert waited["waiters"][0]["pid"] == waiter.pid

    lease.release()
    taken = next_change(watching)
    while not taken["holders"]:  # Between release and the next grant there may be a moment without a holder.
        taken = next_change(watching)
    assert taken["holders"][0]["pid"] == waiter.pid
    assert taken["token"] > lease.token
    waiter.close_stdin()
    assert counts(next_change(watching)) == ("x", False, 0, 0)

    watching.interrupt()
    assert watching.wait() == 128 + signal.SIGINT
    assert watching.stderr == ""


def test_a_prefix_takes_in_names_that_come_later(command_line: CommandLine, locks: holdfast.Client) -> None:
    with locks.lock("a/1"), locks.lock("b/1"):
        watching = command_line.start("watch", "--prefix", "a/", "--json")
        assert counts(next_change(watching)) == ("a/1", True, 1, 0)
        with locks.lock("a/2"):
            assert counts(next_change(watching)) == ("a/2", True, 1, 0)
        assert counts(next_change(watching)) == ("a/2", False, 0, 0)
    assert counts(next_change(watching)) == ("a/1", False, 0, 0)
    watching.terminate()
    assert watching.wait() == 128 + signal.SIGTERM


def test_lines_where_there_is_no_terminal(command_line: CommandLine, locks: holdfast.Client) -> None:
    name = "red\x1b[31m"
    watching = command_line.start("watch", name)
    assert watching.expect().endswith("red\\x1b[31m: free")
    with locks.lock(name) as lease:
        said = watching.expect()
        assert "held by" in said
        assert f"/{os.getpid()}/" in said
        assert f"(token {lease.token})" in said
    assert watching.expect().endswith(": free")


def test_a_holder_that_vanishes_is_seen_to_be_gone(command_line: CommandLine, locks: holdfast.Client) -> None:
    holder = command_line.script(HOLD)
    holder.expect("held")
    watching = command_line.start("watch", "--json")
    assert counts(next_change(watching)) == ("x", True, 1, 0)
    holder.kill()
    # Nobody waits for it, so nobody announces it; its lease has most of a minute left.
    assert counts(next_change(watching)) == ("x", False, 0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="counts wake-ups in /proc")
def test_it_is_idle_while_nothing_changes(command_line: CommandLine, locks: holdfast.Client) -> None:
    with locks.lock("x"), locks.lock("y"):
        watching = command_line.start("watch", "--json")
        assert {next_change(watching)["name"] for _ in range(2)} == {"x", "y"}
        cpu, wake_ups = effort_of(watching.pid)
        stays_true(lambda: watching.running, IDLE_SECONDS)
        cpu_after, wake_ups_after = effort_of(watching.pid)
        assert cpu_after - cpu < MOST_CPU_SECONDS
        assert wake_ups_after - wake_ups < MOST_WAKE_UPS
        assert len(watching.stdout_lines) == 2, "that leases are renewed is no news"


def effort_of(pid: int) -> tuple[float, int]:
    """Seconds of CPU, and how often its threads went to sleep and were woken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    statuses = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    lines = [line for status in statuses for line in status.splitlines()]
    wake_ups = sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return ticks / os.sysconf("SC_CLK_TCK"), wake_ups


def test_a_table_at_a_terminal(command_line: CommandLine, locks: holdfast.Client) -> None:
    arguments = ("-c", WATCH_BY_SUBSCRIPTION, "backup")
    session = at_a_terminal(command_line, "env", "TERM=xterm", "NO_COLOR=1", sys.executable, *arguments)
    expect_part(session, "0 held")
    with locks.lock("backup"):
        expect_part(session, f"/{os.getpid()}/")
        expect_part(session, "1 held, 0 waiting")
        waiter = command_line.start("run", "backup", "--", "true")
        assert f"/{waiter.pid}/" in expect_part(session, "waits 1.")
        expect_part(session, "1 held, 1 waiting")
    expect_part(session, "free")
    session.send("^C")
    assert session.expect("status") == "130"
    assert "\x1b[?25h" in session.stdout, "the cursor is back"


def expect_part(session: Process, part: str) -> str:
    """The next line that has it."""
    while part not in (line := session.expect()):
        pass
    return line


def test_a_reader_that_leaves_ends_it(command_line: CommandLine, locks: holdfast.Client) -> None:
    code = """
        import subprocess, sys
        watching = subprocess.Popen([sys.executable, "-m", "holdfast", "watch", "x"], stdout=subprocess.PIPE)
        watching.stdout.readline()
        watching.stdout.close()
        print("left", flush=True)
        print("status", watching.wait())
    """
    process = command_line.script(code, env={"PYTHONUNBUFFERED": None})
    process.expect("left")
    with locks.lock("x"):
        assert process.expect("status") == str(-signal.SIGPIPE)
    assert process.stderr == ""


def test_misuse(command_line: CommandLine) -> None:
    both = command_line.finish("watch", "x", "--prefix", "y")
    assert both.returncode == 64
    assert "not both" in both.stderr
    nowhere = command_line.finish("watch", env={"HOLDFAST_URL": "sqlite:////proc/nowhere/locks.db"})
    assert nowhere.returncode == 69
    assert nowhere.stdout == ""
