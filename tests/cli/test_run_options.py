"""Where the options of ``holdfast run`` end, and the forms it shares with flock(1)."""

from __future__ import annotations

import sys

import pytest

import holdfast
from cli.tools import CommandLine
from support import wait_until

OWN_OPTIONS = ["-n", "-v", "-E", "--help", "--url", "--", "-h", "--version", "--ttl=1", "-c"]
HOLD = ("-c", "print('up', flush=True); input()")
SAY = ["printf", "%s\n"]


@pytest.mark.parametrize(
    "before",
    [
        ["x"],
        ["x", "--"],
        ["--", "x"],
        ["--", "x", "--"],
        ["-v", "x"],
        ["x", "-v"],
        ["x", "-v", "--ttl", "9", "--"],
    ],
    ids=" ".join,
)
def test_options_end_at_the_first_word_of_the_command(command_line: CommandLine, before: list[str]) -> None:
    process = command_line.finish("run", *before, *SAY, *OWN_OPTIONS)
    assert process.returncode == 0, process.stderr
    assert process.stdout_lines == OWN_OPTIONS


def test_a_dry_run_stays_one(command_line: CommandLine, locks: holdfast.Client) -> None:
    """``-n`` after the command is the command's: the run waits, and the command gets it."""
    with locks.lock("x"):
        process = command_line.start("run", "x", "sh", "-c", 'echo "args $*"', "sh", "-n")
        wait_until(lambda: len(locks.inspect("x").waiters) == 1)
    assert process.succeed() == "args -n\n"


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        (["-s"], "read"),
        (["--shared"], "read"),
        (["-x"], "write"),
        (["--exclusive"], "write"),
        ([], "exclusive"),
    ],
)
def test_sides(command_line: CommandLine, locks: holdfast.Client, options: list[str], mode: str) -> None:
    process = command_line.start("run", *options, "x", sys.executable, *HOLD)
    process.expect("up")
    assert [holder.mode for holder in locks.inspect("x").holders] == [mode]
    process.send()
    assert process.wait() == 0


def test_c_has_a_shell_run_it(command_line: CommandLine) -> None:
    process = command_line.finish("run", "x", "-c", "echo one | tr a-z A-Z; exit 3", env={"SHELL": "/bin/sh"})
    assert (process.returncode, process.stdout) == (3, "ONE\n")
    assert command_line.finish("run", "x", "-c", "true", "also").returncode == 64
    assert command_line.finish("run", "-nc", "exit 4", "x", env={"SHELL": None}).returncode == 4


@pytest.mark.parametrize("option", ["-w", "--wait", "--timeout"])
def test_w_waits_no_longer(command_line: CommandLine, locks: holdfast.Client, option: str) -> None:
    with locks.lock("x"):
        process = command_line.finish("run", option, "0.05", "x", "true")
    assert process.returncode == 75
    assert "'x' was not granted within 0.05 s: held by " in process.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x", "--ttl"], "--ttl needs a value"),
        (["x", "-E"], "-E needs a value"),
        (["x", "--nonblock=yes", "true"], "--nonblock does not take a value"),
        (["x", "--no", "true"], "is ambiguous"),
        (["x", "-q", "true"], "there is no option -q"),
        (["x", "--ttl", "1h1h", "true"], "--ttl: '1h1h' is not a duration"),
        (
            ["x", "-E", "300", "true"],
            "300 is out of range: it must be from 0 to 255",
        ),
        (["x"], "COMMAND is missing"),
        ([], "NAME is missing"),
    ],
)
def test_misuse_is_explained(command_line: CommandLine, arguments: list[str], said: str) -> None:
    process = command_line.finish("run", *arguments)
    assert process.returncode == 64
    assert said in process.stderr_lines[0]
    assert process.stderr_lines[1] == "holdfast: try: holdfast run --help"
