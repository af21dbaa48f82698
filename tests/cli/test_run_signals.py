"""Signals: to the command while it runs, to the waiting before that."""

from __future__ import annotations

import signal
import sys

import pytest

import holdfast
from cli.tools import LONG_TTL, CommandLine, is_alive, state_of, wait_until_dead
from support import Process, wait_until

REPORT = """
import os, signal, sys
def report(number, frame):
    print(signal.Signals(number).name, flush=True)
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), report)
print("pid", os.getpid(), flush=True)
while True:
    signal.pause()
"""
PASSED_ON = ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGWINCH"]


def holder_of(
    command_line: CommandLine, name: str, *options: str, signals: list[str] | None = None
) -> Process:
    return command_line.start(
        "run", name, "--ttl", LONG_TTL, *options, "--", sys.executable, "-c", REPORT, *(signals or [])
    )


def test_signals_reach_the_command_once_and_in_order(command_line: CommandLine) -> None:
    wrapper = holder_of(command_line, "x", signals=PASSED_ON)
    wrapper.expect("pid")
    for name in PASSED_ON:
        wrapper.signal(getattr(signal, name))
        assert wrapper.expect() == name
    assert wrapper.stdout_lines[1:] == PASSED_ON
    assert wrapper.running


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1"])
def test_a_signal_that_ends_the_command_ends_the_run(
    command_line: CommandLine, locks: holdfast.Client, name: str
) -> None:
    number = getattr(signal, name)
    # A shell that starts something in the background gives it SIGINT ignored; this one is not.
    wrapper = holder_of(command_line, "x")
    wrapper.expect("pid")
    wrapper.signal(number)
    # Python dies of KeyboardInterrupt with the signal itself, as the shell wants it.
    assert wrapper.wait() == 128 + number
    assert not locks.inspect("x").locked


def test_the_whole_group_of_the_command_is_signalled(command_line: CommandLine) -> None:
    script = 'sleep 1000 & echo "pids $$ $!"; wait'
    wrapper = command_line.start("run", "x", "--", "sh", "-c", script)
    shell, sleep = map(int, wrapper.expect("pids").split())
    wrapper.terminate()
    assert wrapper.wait() == 128 + signal.SIGTERM
    wait_until_dead(shell, sleep)


def test_stop_and_continue_reach_the_command(command_line: CommandLine) -> None:
    wrapper = holder_of(command_line, "x", signals=["SIGCONT"])
    pid = int(wrapper.expect("pid"))
    wrapper.signal(signal.SIGTSTP)
    wait_until(lambda: state_of(pid) == "T")
    assert state_of(wrapper.pid) != "T", "without a terminal the wrapper goes on renewing"
    wrapper.cont()
    assert wrapper.expect() == "SIGCONT"
    assert is_alive(pid)


def test_what_the_caller_ignores_stays_ignored(command_line: CommandLine) -> None:
    code = """
        import os, signal, sys
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.execv(sys.executable, [sys.executable, "-m", "holdfast", *sys.argv[1:]])
    """
    show = "import signal; print(signal.getsignal(signal.SIGHUP).name, signal.getsignal(signal.SIGTERM).name)"
    wrapper = command_line.script(code, "run", "x", "--", sys.executable, "-c", show)
    assert wrapper.expect() == "SIG_IGN SIG_DFL"


def test_the_command_starts_with_the_signals_of_a_fresh_program(command_line: CommandLine) -> None:
    """Python ignores SIGPIPE and catches SIGINT; what it runs must not inherit that."""
    show = ("grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status")
    assert command_line.start("run", "x", "--", *show).succeed() == command_line.program(*show).succeed()


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM"])
def test_a_signal_while_waiting_leaves_nothing_behind(
    command_line: CommandLine, locks: holdfast.Client, name: str
) -> None:
    number = getattr(signal, name)
    holder = holder_of(command_line, "x")
    holder.expect("pid")
    waiter = command_line.start("run", "x", "--ttl", LONG_TTL, "--", "echo", "ran")
    wait_until(lambda: len(locks.inspect("x").waiters) == 1)
    waiter.signal(number)
    assert waiter.wait() == 128 + number
    assert waiter.stdout_lines == []
    assert waiter.stderr_lines == []
    assert locks.inspect("x").waiters == ()
    assert [held.pid for held in locks.inspect("x").holders] == [holder.pid]


def test_other_signals_do_not_end_the_waiting(command_line: CommandLine, locks: holdfast.Client) -> None:
    with locks.lock("x"):
        waiter = command_line.start("run", "x", "--", "echo", "ran")
        wait_until(lambda: len(locks.inspect("x").waiters) == 1)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH):
            waiter.signal(number)
    assert waiter.wait() == 0
    assert waiter.stdout_lines == ["ran"]


def test_impatience_while_waiting_changes_nothing(command_line: CommandLine, locks: holdfast.Client) -> None:
    """Ctrl-C again and again must not interrupt the withdrawal that the first one set off."""
    with locks.lock("x"):
        waiter = command_line.start("run", "x", "--ttl", LONG_TTL, "--", "echo", "ran")
        wait_until(lambda: len(locks.inspect("x").waiters) == 1)

        def interrupted_again() -> bool:
            if waiter.running:
                waiter.interrupt()
            return not waiter.running

        wait_until(interrupted_again)
        assert waiter.returncode == 130
        assert "Traceback" not in waiter.stderr
        assert locks.inspect("x").waiters == ()
