"""``holdfast run`` at a terminal: interactive commands work, keys reach them, jobs can be suspended."""

from __future__ import annotations

import shutil
import sys

import pytest

import holdfast
from cli.tools import LONG_TTL, CommandLine, at_a_terminal, is_alive, state_of
from support import Process, wait_until

ECHO = """
import os, signal, sys
print("pid", os.getpid(), os.getpgrp() == os.tcgetpgrp(0), flush=True)
for line in sys.stdin:
    print("got", line.strip(), flush=True)
"""
ECHO_UNLESS_INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, lambda *_: print("SIGINT", flush=True))
print("up", flush=True)
for line in sys.stdin:
    print("got", line.strip(), flush=True)
"""


def run_at_a_terminal(command_line: CommandLine, code: str, *options: str) -> Process:
    wrapped = ("-m", "holdfast", "run", "x", "--ttl", LONG_TTL, *options, "--", sys.executable, "-c", code)
    return at_a_terminal(command_line, sys.executable, *wrapped)


def test_a_command_can_read_the_terminal(command_line: CommandLine) -> None:
    session = run_at_a_terminal(command_line, ECHO)
    assert session.expect("pid").endswith("True"), "it is in front"
    session.send("hello")
    assert session.expect("got") == "hello"
    session.send("^D")
    assert session.expect("status") == "0"


def test_ctrl_c_reaches_the_command_once(command_line: CommandLine) -> None:
    session = run_at_a_terminal(command_line, ECHO_UNLESS_INTERRUPTED)
    session.expect("up")
    session.send("^C")
    session.expect("SIGINT")
    session.send("still here")
    assert session.expect("got") == "still here"
    assert "".join(session.stdout_lines).count("SIGINT") == 1
    session.send("^D")
    assert session.expect("status") == "0"


def test_ctrl_c_ends_a_command_that_does_not_mind(command_line: CommandLine) -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); print('up', flush=True); signal.pause()"
    )
    session = run_at_a_terminal(command_line, code)
    session.expect("up")
    session.send("^C")
    assert session.expect("status") == "130"


def test_ctrl_c_while_waiting(command_line: CommandLine, locks: holdfast.Client) -> None:
    with locks.lock("x"):
        session = at_a_terminal(command_line, sys.executable, "-m", "holdfast", "run", "x", "--", "true")
        wait_until(lambda: len(locks.inspect("x").waiters) == 1)
        session.send("^C")
        assert session.expect("status") == "130"
        assert locks.inspect("x").waiters == ()


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="job control is tried in bash")


def shell_session(command_line: CommandLine) -> Process:
    shell = at_a_terminal(command_line, "bash", "--norc", "--noprofile", "--noediting", "-i")
    shell.send("PS1= PS2=; echo; echo ready")
    shell.expect("ready")
    return shell


def wrapped(code: str, *options: str) -> str:
    """A command line for the shell; ``code`` must hold no double quotes."""
    wrapper = f"{sys.executable} -m holdfast run x --ttl {LONG_TTL} {' '.join(options)}"
    return f'{wrapper} -- {sys.executable} -c "{code}"'


@needs_bash
def test_a_run_can_be_suspended_and_brought_back(command_line: CommandLine, locks: holdfast.Client) -> None:
    shell = shell_session(command_line)
    shell.send(wrapped(ECHO.replace('"', "'")))
    pid = int(shell.expect("pid").split()[0])
    wrapper = locks.inspect("x").holders[0].pid
    shell.send("^Z")
    wait_until(lambda: (state_of(pid), state_of(wrapper)) == ("T", "T"))
    shell.send("echo 'the shell is back'")
    shell.expect("the shell is back")
    shell.send("fg")
    wait_until(lambda: state_of(pid) != "T")
    shell.send("hello")
    assert shell.expect("got") == "hello"
    shell.send("^D")
    wait_until(lambda: not is_alive(wrapper))
    shell.send("echo status $?")
    assert shell.expect("status") == "0"


@needs_bash
def test_a_suspended_run_ends_with_its_lease(command_line: CommandLine, locks: holdfast.Client) -> None:
    shell = shell_session(command_line)
    shell.send(wrapped(ECHO.replace('"', "'"), "--ttl", "1"))
    pid = int(shell.expect("pid").split()[0])
    shell.send("^Z")
    with locks.lock("x", timeout=20):
        wait_until(lambda: not is_alive(pid))
        shell.send("fg; echo status $?")
        assert shell.expect("status") == "76"


@needs_bash
def test_a_run_in_the_background_gets_the_terminal_when_brought_forward(
    command_line: CommandLine, locks: holdfast.Client
) -> None:
    shell = shell_session(command_line)
    shell.send(wrapped(ECHO.replace('"', "'")) + " &")
    pid = int(shell.expect("pid").split()[0])
    wrapper = locks.inspect("x").holders[0].pid
    # It wanted to read, and was in the background: the whole job stops, as the shell expects.
    wait_until(lambda: (state_of(pid), state_of(wrapper)) == ("T", "T"))
    shell.send('while [ -z "$(jobs -s)" ]; do :; done; fg')  # It continues only what it knows to be stopped.
    wait_until(lambda: state_of(pid) != "T")
    shell.send("hello")
    assert shell.expect("got") == "hello"
    shell.send("^D")
    wait_until(lambda: not is_alive(pid))
    shell.send("echo status $?")
    assert shell.expect("status") == "0"


@needs_bash
def test_a_neighbour_in_a_pipeline_keeps_the_terminal(command_line: CommandLine) -> None:
    """As with a pager: it reads keys while the run only writes to it."""
    shell = shell_session(command_line)
    neighbour = "import sys; print('read', sys.stdin.readline(), open('/dev/tty').readline(), flush=True)"
    shell.send(wrapped("print('data', flush=True)") + f' | {sys.executable} -c "{neighbour}"')
    shell.send("a key")
    shell.expect("read data")
    assert shell.expect("") == "a key"


@needs_bash
def test_the_shell_has_its_terminal_back_afterwards(command_line: CommandLine) -> None:
    shell = shell_session(command_line)
    for ending, status in (("pass", "0"), ("import os; os.kill(os.getpid(), 9)", "137")):
        shell.send(wrapped(ending) + "; echo status $?")
        assert shell.expect("status") == status
    shell.send("cat")
    shell.send("typed")
    assert shell.expect() == "typed"
