"""What ``holdfast run`` exits with."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

import holdfast
from cli.tools import CommandLine

HOLD = ("-c", "print('up', flush=True); input()")


@pytest.mark.parametrize("status", [0, 1, 3, 75, 255])
def test_the_status_of_the_command_passes_through(command_line: CommandLine, status: int) -> None:
    assert command_line.finish("run", "x", "--", "sh", "-c", f"exit {status}").returncode == status


@pytest.mark.parametrize("signum", [2, 9, 15])
def test_a_command_ended_by_a_signal_is_128_and_its_number(command_line: CommandLine, signum: int) -> None:
    assert command_line.finish("run", "x", "--", "sh", "-c", f"kill -{signum} $$").returncode == 128 + signum


def test_a_command_that_is_not_there_is_127(command_line: CommandLine) -> None:
    process = command_line.finish("run", "x", "--", "no-such-command")
    assert process.returncode == 127
    assert process.stderr_lines == ["holdfast: cannot run 'no-such-command': No such file or directory"]


def test_a_command_that_cannot_be_executed_is_126(command_line: CommandLine, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("text")
    assert command_line.finish("run", "x", "--", str(plain)).returncode == 126
    assert command_line.finish("run", "x", "--", str(tmp_path)).returncode == 126
    assert command_line.finish("run", "x", "--", f"{plain}/below").returncode == 126


def test_a_script_that_names_no_interpreter_runs_as_under_a_shell(
    command_line: CommandLine, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text('echo "got $1"\nexit 5\n')
    script.chmod(0o755)
    process = command_line.finish("run", "x", "--", str(script), "this")
    assert process.returncode == 5
    assert process.stdout_lines == ["got this"]


def test_a_command_that_could_not_start_leaves_the_lock_free(
    command_line: CommandLine, locks: holdfast.Client
) -> None:
    command_line.finish("run", "x", "--", "no-such-command")
    assert not locks.inspect("x").locked


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["-n"], 75),
        (["--nonblock"], 75),
        (["--timeout", "0"], 75),
        (["--timeout", "50ms"], 75),
        (["-n", "-E", "9"], 9),
        (["-n", "--conflict-exit-code", "0"], 0),
    ],
)
def test_not_granted(command_line: CommandLine, options: list[str], status: int) -> None:
    holder = command_line.start("run", "x", "--", sys.executable, *HOLD)
    holder.expect("up")
    process = command_line.finish("run", "x", *options, "--", "echo", "ran")
    assert process.returncode == status
    assert process.stdout_lines == []
    if status == 0:
        assert process.stderr_lines == [], "as good as success: cron has nothing to mail"
    else:
        (line,) = process.stderr_lines
        assert line.startswith("holdfast: 'x' was not granted")
        assert f"held by {socket.gethostname()}/{holder.pid}/" in line
    holder.send()
    assert holder.wait() == 0


def test_verbose_shows_the_holder_if_it_is_not_granted(command_line: CommandLine) -> None:
    holder = command_line.start("run", "x", "--", sys.executable, *HOLD)
    holder.expect("up")
    said = command_line.finish("run", "x", "-n", "-v", "--", "true").stderr
    assert "'x' was not granted" in said
    assert f"/{holder.pid}/" in said
    assert Path(sys.executable).name in said


def test_verbose_tells_scope_grant_and_release(command_line: CommandLine, locks: holdfast.Client) -> None:
    said = command_line.finish("run", "x", "-v", "--", "true").stderr
    assert "scope user" in said
    assert f"granted 'x' with token {locks.inspect('x').token} after" in said
    assert "released 'x'" in said


def test_quiet_without_verbose(command_line: CommandLine) -> None:
    process = command_line.finish("run", "x", "--", "true")
    assert (process.stdout, process.stderr) == ("", "")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["--nonsense"],
        ["run"],
        ["run", "x"],
        ["run", "x", "--nonsense", "--", "true"],
        ["run", "", "--", "true"],
        ["run", "n" * 513, "--", "true"],
        ["run", "x", "--ttl", "0", "--", "true"],
        ["run", "x", "--ttl", "nan", "--", "true"],
        ["run", "x", "--ttl", "soon", "--", "true"],
        ["run", "x", "--ttl", "-1", "--", "true"],
        ["run", "x", "--timeout", "-1", "--", "true"],
        ["run", "x", "--timeout", "1", "-n", "--", "true"],
        ["run", "x", "--limit", "0", "--", "true"],
        ["run", "x", "--limit", "2", "--shared", "--", "true"],
        ["run", "x", "--write", "--shared", "--", "true"],
        ["run", "x", "-E", "256", "--", "true"],
        ["run", "x", "--max-hold", "0", "--", "true"],
        ["run", "x", "--grace", "31", "--", "true"],
        ["run", "x", "--url", "nonsense://", "--", "true"],
        ["run", "x", "--url", "no url", "--", "true"],
        ["ls", "--url", "nonsense://"],
        ["show"],
        ["break", "x"],
        ["break", "x", "--reason", "why", "--token", "many"],
    ],
)
def test_misuse_is_64_and_says_why(command_line: CommandLine, arguments: list[str]) -> None:
    process = command_line.finish(*arguments)
    assert process.returncode == 64, process.stderr
    assert process.stderr.strip(), "silent"
    assert "Traceback" not in process.stderr


@pytest.mark.parametrize("command", [["run", "x", "--", "true"], ["ls"], ["show", "x"]])
def test_an_engine_that_cannot_be_used_is_69(
    command_line: CommandLine, tmp_path: Path, command: list[str]
) -> None:
    corrupt = tmp_path / "corrupt.db"
    corrupt.write_bytes(b"this is no database, whatever its name says" * 100)
    missing = tmp_path / "missing" / "locks.db"
    for path in (missing, corrupt):
        process = command_line.finish(*command, env={"HOLDFAST_URL": f"sqlite:///{path}"})
        assert process.returncode == 69, process.stderr
        assert len(process.stderr_lines) == 1
        assert str(path.parent) in process.stderr


def test_an_engine_of_one_process_is_no_protection_and_says_so(command_line: CommandLine) -> None:
    process = command_line.finish("run", "x", "--", "true", env={"HOLDFAST_URL": "memory://"})
    assert process.returncode == 0
    assert "excludes no other" in process.stderr
