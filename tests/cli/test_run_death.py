"""When the wrapper or its supervisor is killed, the command does not run on beside the next holder's."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import holdfast
from cli.tools import LONG_TTL, CommandLine, is_alive, wait_until_dead
from support import wait_until

FAMILY = 'sleep 1000 & one=$!; setsid sleep 1000 & two=$!; echo "pids $PPID $$ $one $two"; wait'
"""Prints: supervisor, shell, a child in its group, a child in a session of its own."""


def test_killing_the_wrapper_kills_the_command_and_frees_the_lock_at_once(command_line: CommandLine) -> None:
    wrapper = command_line.start("run", "x", "--ttl", LONG_TTL, "--", "sh", "-c", FAMILY)
    pids = [int(pid) for pid in wrapper.expect("pids").split()]
    assert all(map(is_alive, pids))
    wrapper.kill()
    assert command_line.finish("run", "x", "-n", "--", "echo", "next").stdout_lines == ["next"]
    wait_until_dead(*pids)


def test_killing_the_wrappers_group_kills_the_command(command_line: CommandLine) -> None:
    wrapper = command_line.start("run", "x", "--ttl", LONG_TTL, "--", "sh", "-c", FAMILY)
    pids = [int(pid) for pid in wrapper.expect("pids").split()]
    wrapper.signal_group(signal.SIGKILL)
    wait_until_dead(*pids)


def test_killing_the_supervisor_kills_the_command_and_ends_the_wrapper(
    command_line: CommandLine, locks: holdfast.Client
) -> None:
    wrapper = command_line.start("run", "x", "--ttl", LONG_TTL, "--", "sh", "-c", FAMILY)
    supervisor, shell, sibling, loner = map(int, wrapper.expect("pids").split())
    try:
        os.kill(supervisor, signal.SIGKILL)
        assert wrapper.wait() == 128 + signal.SIGKILL
        wait_until_dead(shell, sibling)
        assert not locks.inspect("x").locked
    finally:
        os.kill(loner, signal.SIGKILL)  # Out of reach without the supervisor, as the help says.


def test_killing_a_wrapper_that_waits_leaves_no_process_and_no_entry(
    command_line: CommandLine, locks: holdfast.Client
) -> None:
    with locks.lock("x"):
        waiter = command_line.start("run", "x", "--ttl", LONG_TTL, "--", "echo", "ran")
        wait_until(lambda: len(locks.inspect("x").waiters) == 1)
        supervisors = children_of(waiter.pid)
        assert len(supervisors) == 1
        waiter.kill()
        wait_until_dead(*supervisors)
    assert command_line.finish("run", "x", "--timeout", "10", "--", "echo", "next").stdout_lines == ["next"]


def test_what_the_command_leaves_behind_is_left_alone(command_line: CommandLine) -> None:
    """A command that starts a service has done its job when it ends."""
    script = 'sleep 1000 >/dev/null 2>&1 </dev/null & echo "pid $!"'
    wrapper = command_line.start("run", "x", "--ttl", LONG_TTL, "--", "sh", "-c", script)
    service = int(wrapper.expect("pid"))
    try:
        assert wrapper.wait() == 0
        assert is_alive(service)
    finally:
        os.kill(service, signal.SIGKILL)


def test_runs_of_one_name_exclude_each_other(command_line: CommandLine, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    once = f"import os; os.mkdir({str(inside)!r}); os.rmdir({str(inside)!r}); print('done')"
    runs = [command_line.start("run", "x", "--", sys.executable, "-S", "-c", once) for _ in range(6)]
    for run in runs:
        assert run.wait(60) == 0, run.stderr
        assert run.stdout_lines == ["done"]


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
