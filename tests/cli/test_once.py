"""``holdfast once``: of many servers that start the same line, one runs the command."""

from __future__ import annotations

import json
import signal
import sys
import time

import holdfast
from cli.tools import CommandLine
from holdfast.model import Run
from holdfast.recipes import names
from holdfast.recipes.job import encode
from support import wait_until

HOLD = (sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()")


def test_of_many_that_start_it_one_runs_the_command(command_line: CommandLine) -> None:
    started = [
        command_line.start("once", "x", "--every", "1h", "--", "sh", "-c", "echo ran $HOLDFAST_NAME")
        for _ in range(4)
    ]
    for process in started:
        process.close_stdin()
        process.wait()
    assert [process.returncode for process in started] == [0] * 4
    assert sorted(line for process in started for line in process.stdout_lines) == ["ran x"]


def test_what_ran_is_shown(command_line: CommandLine) -> None:
    assert command_line.finish("once", "show", "x").returncode == 1
    ended = command_line.finish("once", "--every", "1h", "x", "--", "sh", "-c", "exit 3")
    assert ended.returncode == 3, "the status of the command"
    again = command_line.finish("once", "x", "--every", "1h", "-v", "-E", "9", "--", "echo", "no")
    assert again.returncode == 9
    assert again.stdout_lines == []
    assert "'x' is not run: not due" in again.stderr
    shown = json.loads(command_line.start("once", "show", "x", "--json").succeed())
    assert shown["last"]["state"] == "failed"
    assert shown["last"]["error"] == "CommandFailed: the command ended with status 3"
    assert shown["last"]["result"] == {"status": 3}
    assert shown["next_due"] == shown["last"]["due"] + 3600
    assert (shown["missed"], shown["every"]) == (0, 3600.0)
    assert "status 3" in command_line.start("once", "show", "x").succeed()
    [listed] = json.loads(command_line.start("once", "ls", "--json").succeed())
    assert listed == {"name": "x", **{key: shown[key] for key in shown if key != "name"}}
    assert "failed" in command_line.start("once", "ls", "x").succeed()
    assert "no job has run" in command_line.start("once", "ls", "y").succeed()
    words = ("once", "run", "ls", "--every", "1h", "--", "true")
    assert command_line.finish(*words).returncode == 0, "a job that is called ls"


def test_a_killed_run_has_crashed_and_its_command_is_dead(
    command_line: CommandLine, locks: holdfast.Client
) -> None:
    process = command_line.start("once", "x", "--every", "1h", "--", *HOLD)
    process.expect("up")
    skipped = command_line.finish("once", "x", "--every", "1h", "-v", "--", "true")
    assert "not run: running" in skipped.stderr
    process.kill()
    process.wait()
    wait_until(lambda: not locks.inspect("_holdfast/job:x").locked)
    last = locks.job("x").last
    assert last is not None
    assert last.state == "crashed"
    skip = command_line.finish("once", "x", "--every", "1h", "--on-crash", "skip", "--", "echo", "again")
    assert skip.stdout_lines == []
    rerun = command_line.finish("once", "x", "--every", "1h", "--", "echo", "again")
    assert rerun.stdout_lines == ["again"]


def test_a_run_that_is_terminated_counts_as_crashed(
    command_line: CommandLine, locks: holdfast.Client
) -> None:
    process = command_line.start("once", "x", "--every", "1h", "--", *HOLD)
    process.expect("up")
    process.terminate()
    process.wait()
    assert process.returncode == 128 + signal.SIGTERM
    last = locks.job("x").last
    assert last is not None
    assert last.state == "crashed"
    assert "status 143" in (last.error or "")


def test_a_run_that_takes_longer_than_at_most_is_ended(
    command_line: CommandLine, locks: holdfast.Client
) -> None:
    process = command_line.finish("once", "x", "--at-most", "500ms", "--", "sleep", "60")
    assert process.returncode == 76
    assert "was lost" in process.stderr
    last = locks.job("x").last
    assert last is not None
    assert last.state == "crashed"


def test_one_run_makes_up_for_missed_firings(command_line: CommandLine, locks: holdfast.Client) -> None:
    """Those of a job that ran three and a half hours ago, and then never again."""
    at = time.time() - 3.5 * 3600
    cell = locks.cell("x")
    cell._cell.record = names.job_state("x")
    cell.set_if(0, encode(Run(started=at, ended=at + 1, owner="a", due=at, every=3600.0, state="done")))
    print_it = ("sh", "-c", "echo missed $HOLDFAST_MISSED, due $HOLDFAST_DUE")
    late = command_line.finish("once", "x", "--every", "1h", "--", *print_it)
    assert late.stdout_lines == [f"missed 2, due {at + 3 * 3600:.6f}"], "it is due without --catch-up, too"
    assert (
        "2" in command_line.start("once", "show", "x").succeed().split("missed firings")[1].split("token")[0]
    )
    assert command_line.finish("once", "x", "--every", "1h", "--", *print_it).stdout_lines == []
    for printed in (["missed 2, due"], []):
        caught_up = command_line.finish("once", "x", "--every", "1h", "--catch-up", "--", *print_it)
        assert [line[:13] for line in caught_up.stdout_lines] == printed
    assert json.loads(command_line.start("once", "show", "x", "--json").succeed())["missed"] == 0


def test_wrong_command_lines(command_line: CommandLine) -> None:
    for words, said in (
        (("x", "--every", "1h"), "COMMAND is missing"),
        (("x", "--every", "1ms", "--", "true"), "every must be between 1"),
        (("x", "--on-crash", "retry", "--", "true"), "on_crash is 'rerun'"),
        (("x", "--catch-up", "--", "true"), "give every="),
        (("x", "--evry", "1h", "--", "true"), "there is no option --evry"),
    ):
        process = command_line.finish("once", *words)
        assert process.returncode == 64
        assert said in process.stderr
