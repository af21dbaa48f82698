"""``holdfast elect`` and ``holdfast leader``: one instance of a command, and where it is."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
from cli.tools import LONG_TTL, CommandLine, wait_until_dead
from holdfast.lab.servers import Redis
from support import Process, wait_until

SERVE = 'echo "term $HOLDFAST_TOKEN pid $$ of $HOLDFAST_NAME"; exec sleep 1000'


def candidate(command_line: CommandLine, *options: str, script: str = SERVE) -> Process:
    return command_line.start("elect", "x", "--ttl", LONG_TTL, *options, "--", "sh", "-c", script)


def begun(process: Process) -> tuple[int, int]:
    """The term and the process of the command that a candidate has started."""
    token, _, pid, _, name = process.expect("term").split()
    assert name == "x"
    return int(token), int(pid)


def waiters(locks: holdfast.Client) -> int:
    return len(locks.inspect(locks.election("x").lock_name).waiters)


def test_one_instance_runs_and_is_started_elsewhere_when_its_holder_dies(
    command_line: CommandLine, locks: holdfast.Client
) -> None:
    first = candidate(command_line, "--value", "one")
    token, pid = begun(first)
    second = candidate(command_line, "--value", "two")
    wait_until(lambda: waiters(locks) == 1)
    leader = locks.election("x").leader()
    assert leader is not None
    assert (leader.value, leader.token) == (b"one", token)
    first.kill()
    later, other = begun(second)
    assert later > token
    wait_until_dead(pid)
    shown = command_line.finish("leader", "x")
    assert (shown.returncode, shown.stdout_lines[1].split()) == (0, ["value", "two"])
    document = json.loads(command_line.finish("leader", "x", "--json").stdout)
    assert (document["token"], document["value"], document["value_base64"]) == (later, "two", "dHdv")
    second.signal(signal.SIGTERM)
    assert second.wait() == 128 + signal.SIGTERM, "a signal ends the candidate, though it restarts always"
    wait_until_dead(other)
    assert command_line.finish("leader", "x").returncode == 1


@pytest.mark.parametrize(
    ("policy", "first", "runs"),
    [("never", 3, 1), ("never", 0, 1), ("on-failure", 0, 1), ("on-failure", 3, 2), ("always", 0, 3)],
)
def test_when_the_command_is_started_again(
    command_line: CommandLine, tmp_path: Path, policy: str, first: int, runs: int
) -> None:
    """The first run ends with ``first``, later ones with 0; the third ends its candidate by a signal."""
    log = tmp_path / "log"
    script = f"""
echo run >> {log}
count=$(wc -l < {log})
[ $count -lt 3 ] || kill -TERM $(cut -d' ' -f4 /proc/$PPID/stat)
[ $count -gt 1 ] || exit {first}
[ $count -lt 3 ] || exec sleep 1000
"""
    process = candidate(command_line, "--restart", policy, script=script)
    expected = {1: first, 2: 0, 3: 128 + signal.SIGTERM}[runs]
    assert process.wait() == expected, process.stderr
    assert log.read_text().count("run") == runs


def test_a_command_that_always_ends_at_once_is_not_started_in_a_tight_loop(
    command_line: CommandLine, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    candidate(command_line, "--restart", "always", script=f"date +%s.%N >> {log}")
    wait_until(lambda: log.exists() and log.read_text().count("\n") >= 3)
    first, second, third = map(float, log.read_text().split()[:3])
    assert min(second - first, third - second) > 0.4


def test_a_command_whose_leadership_is_lost_ends_and_is_started_again(
    command_line: CommandLine, locks: holdfast.Client
) -> None:
    process = candidate(command_line, "--restart", "on-failure")
    token, pid = begun(process)
    locks.break_lock(locks.election("x").lock_name, reason="to see what happens")
    later, _ = begun(process)
    assert later > token
    wait_until_dead(pid)
    assert "lost the leadership 'x' (broken)" in process.stderr


def test_a_candidate_that_waits_leaves_when_it_is_asked_to(
    command_line: CommandLine, locks: holdfast.Client
) -> None:
    with locks.election("x").campaign():
        process = candidate(command_line)
        wait_until(lambda: waiters(locks) == 1)
        process.signal(signal.SIGINT)
        assert process.wait() == 128 + signal.SIGINT
        assert waiters(locks) == 0


def test_an_election_inside_its_own_term_is_refused(command_line: CommandLine) -> None:
    process = candidate(
        command_line, "--restart", "never", script=f"{sys.executable} -m holdfast elect x -- true"
    )
    assert process.wait() == 64
    assert "enclosing run" in process.stderr


def test_a_command_that_cannot_be_started_is_not_tried_for_ever(command_line: CommandLine) -> None:
    assert command_line.finish("elect", "x", "--", "no-such-command").returncode == 127
    assert command_line.finish("elect", "x", "--restart", "maybe", "--", "true").returncode == 64
    assert command_line.finish("elect", "x").returncode == 64


@pytest.mark.slow
@pytest.mark.engine("redis")
def test_a_candidate_outlives_an_engine_that_goes_away() -> None:
    """Its command ends with the lease, and is started again when the engine is back."""
    with ExitStack() as stack, Redis() as server:
        command_line = CommandLine(server.url, stack)
        process = command_line.start("elect", "x", "--ttl", "1", "--", "sh", "-c", SERVE)
        token, pid = begun(process)
        server.stop()
        wait_until_dead(pid)
        wait_until(lambda: "campaigning again" in process.stderr, timeout=30)
        server.start()
        later, _ = begun(process)
        assert later > token
        process.signal(signal.SIGTERM)
        process.wait()
        server.stop()
        assert command_line.finish("elect", "x", "--", "true").returncode == 69, "at the start it is an error"


def test_a_signal_that_the_command_survives(command_line: CommandLine, locks: holdfast.Client) -> None:
    """SIGHUP may mean to read the settings again: a later failure is one, and it is restarted."""
    script = """
trap 'echo reloads' HUP
echo "term $HOLDFAST_TOKEN pid $$ of $HOLDFAST_NAME"
while :; do sleep 0.05; done
"""
    process = candidate(command_line, script=script)
    token, pid = begun(process)
    process.signal(signal.SIGHUP)
    process.expect("reloads")
    os.kill(pid, signal.SIGKILL)
    later, _ = begun(process)
    assert later > token
    process.signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM


def test_watching_leaders(command_line: CommandLine, locks: holdfast.Client) -> None:
    watcher = command_line.start("leader", "x", "--watch")
    lines = command_line.start("leader", "x", "--watch", "--json")
    watcher.expect("no leader")
    assert json.loads(lines.expect())["leader"] is None
    with locks.election("x", b"host:1").campaign() as leadership:
        assert watcher.expect().endswith(f" term {leadership.token} host:1")
        assert json.loads(lines.expect())["value"] == "host:1"
    watcher.expect("no leader")
    for each in (watcher, lines):
        each.signal(signal.SIGINT)
        assert each.wait() == 128 + signal.SIGINT
