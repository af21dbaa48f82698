"""When the lock is lost, the command ends in time, and the status says so."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

import holdfast
from cli.tools import LONG_TTL, CommandLine, is_alive, wait_until_dead
from support import wait_until

HOLD = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(1000)"
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: print("asked to end", flush=True))
print("pid", os.getpid(), flush=True)
while True:
    time.sleep(1000)
"""
TIDY = """
import os, signal, sys, time
def tidy_up(*_):
    print("tidied up", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, tidy_up)
print("pid", os.getpid(), flush=True)
time.sleep(1000)
"""
IN_TIME = ("--ttl", LONG_TTL, "--max-hold", "6", "--grace", "3")
"""For a command that has to have begun before it is asked to end, and to answer before it is ended."""


def test_a_stopped_wrapper_does_not_let_its_command_outlive_the_lease(
    command_line: CommandLine, locks: holdfast.Client
) -> None:
    wrapper = command_line.start("run", "x", "--ttl", "1", "--", sys.executable, "-c", HOLD)
    pid = int(wrapper.expect("pid"))
    wrapper.stop()
    # The next holder gets the lock when the lease has run out, and finds the command dead.
    lease = locks.lock("x", timeout=20).acquire()
    assert lease is not None
    wait_until_dead(pid)
    wrapper.cont()
    assert wrapper.wait() == 76
    assert "lost the lock 'x'" in wrapper.stderr
    lease.check()
    lease.release()


def test_breaking_ends_the_command(command_line: CommandLine, locks: holdfast.Client) -> None:
    wrapper = command_line.start("run", "x", "--ttl", LONG_TTL, "--", sys.executable, "-c", STUBBORN)
    pid = int(wrapper.expect("pid"))
    broken = command_line.finish("break", "x", "--reason", "test")
    assert broken.returncode == 0
    assert wrapper.wait() == 76
    assert not is_alive(pid)
    assert "broken" in wrapper.stderr
    assert not locks.inspect("x").locked


def test_everything_the_command_started_ends_with_it(command_line: CommandLine) -> None:
    """In its process group or out of it: a session of one's own does not help."""
    script = 'sleep 1000 & one=$!; setsid sleep 1000 & two=$!; echo "pids $$ $one $two"; wait'
    wrapper = command_line.start("run", "x", "--ttl", LONG_TTL, "--", "sh", "-c", script)
    pids = [int(pid) for pid in wrapper.expect("pids").split()]
    assert command_line.finish("break", "x", "--reason", "test").returncode == 0
    assert wrapper.wait() == 76
    wait_until_dead(*pids)


def test_what_a_shell_ran_may_tidy_up_although_the_shell_is_gone(
    command_line: CommandLine, tmp_path: Path
) -> None:
    """A shell dies of SIGTERM at once; the work is done by what it ran."""
    worker = tmp_path / "worker.py"
    worker.write_text(TIDY)
    wrapper = command_line.start("run", "x", *IN_TIME, "--", "sh", "-c", f"{sys.executable} {worker} & wait")
    wrapper.expect("tidied up")
    assert wrapper.wait() == 76


def test_what_left_the_group_is_not_asked_but_ends_at_the_deadline(command_line: CommandLine) -> None:
    script = 'setsid sleep 1000 & echo "pid $!"; wait'
    wrapper = command_line.start("run", "x", *IN_TIME, "--", "sh", "-c", script)
    pid = int(wrapper.expect("pid"))
    assert wrapper.wait() == 76
    assert not is_alive(pid)
    assert "status 143" in wrapper.stderr


def test_a_stopped_command_is_ended_too(command_line: CommandLine) -> None:
    wrapper = command_line.start("run", "x", "--ttl", LONG_TTL, "--", sys.executable, "-c", HOLD)
    pid = int(wrapper.expect("pid"))
    wrapper.signal(signal.SIGTSTP)
    command_line.finish("break", "x", "--reason", "test")
    assert wrapper.wait() == 76
    assert not is_alive(pid)


def test_grace_lets_the_command_tidy_up(command_line: CommandLine, locks: holdfast.Client) -> None:
    wrapper = command_line.start("run", "x", *IN_TIME, "--", sys.executable, "-c", TIDY)
    wrapper.expect("tidied up")
    assert wrapper.wait() == 76
    assert "max_hold" in wrapper.stderr or "not renewed" in wrapper.stderr
    assert not locks.inspect("x").locked


def test_the_deadline_is_the_end_whatever_the_command_says(command_line: CommandLine) -> None:
    wrapper = command_line.start("run", "x", *IN_TIME, "--", sys.executable, "-c", STUBBORN)
    pid = int(wrapper.expect("pid"))
    wrapper.expect("asked to end")
    assert wrapper.wait() == 76
    assert not is_alive(pid)
    assert "status 137" in wrapper.stderr


def test_a_command_that_ended_well_after_the_loss_is_still_76(
    command_line: CommandLine, locks: holdfast.Client
) -> None:
    """It finished without protection: the status must show it."""
    wrapper = command_line.start("run", "x", "--ttl", LONG_TTL, "--", sys.executable, "-c", "input()")
    wait_until(lambda: locks.inspect("x").locked)
    wrapper.stop()
    locks.break_lock("x", reason="test")
    wrapper.send()
    wrapper.cont()
    assert wrapper.wait() == 76


@pytest.mark.slow
def test_renewal_keeps_a_long_run_alive(command_line: CommandLine, locks: holdfast.Client) -> None:
    wrapper = command_line.start("run", "x", "--ttl", "2.5", "--", sys.executable, "-c", "input()")
    wait_until(lambda: locks.inspect("x").locked)
    token = locks.inspect("x").token
    wait_until(lambda: locks.inspect("x").holders[0].age > 3)
    wrapper.send()
    assert wrapper.wait() == 0
    assert locks.inspect("x").token == token
