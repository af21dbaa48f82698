"""Help that teaches, a quick start, and what happens without the extra."""

from __future__ import annotations

import importlib.metadata

import pytest

import holdfast
from cli.tools import CommandLine
from holdfast.cli.exits import Status

COMMANDS = ["run", "ls", "show", "watch", "break", "guarantees", "doctor"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_and_the_common_options(command_line: CommandLine, command: str) -> None:
    said = command_line.start(command, "--help").succeed()
    assert "Examples" in said
    assert f"holdfast {command}" in said
    for option in ("--url", "HOLDFAST_URL", "--namespace"):
        assert option in said
    assert ("--json" in said) == (command != "run")


def test_the_help_of_the_whole_lists_the_commands(command_line: CommandLine) -> None:
    said = command_line.start("--help").succeed()
    for command in [*COMMANDS, "init"]:
        assert f"\n  {command} " in said
    assert said == command_line.start("-h").succeed()


def test_run_lists_its_exit_statuses(command_line: CommandLine) -> None:
    said = command_line.start("run", "--help").succeed()
    listed = (
        Status.USAGE,
        Status.UNAVAILABLE,
        Status.NOT_GRANTED,
        Status.LOST,
        Status.NOT_EXECUTABLE,
        Status.NOT_FOUND,
    )
    for status in listed:
        assert f" {status.value}  " in said
    assert "128+N" in said


def test_version(command_line: CommandLine) -> None:
    assert command_line.start("--version").succeed() == f"holdfast {importlib.metadata.version('holdfast')}\n"


def test_without_rich_one_line_says_what_to_install(
    command_line: CommandLine, locks: holdfast.Client
) -> None:
    code = """
        import sys
        sys.modules["rich"] = sys.modules["rich.table"] = sys.modules["rich.box"] = None
        from holdfast.cli import main
        sys.exit(main(sys.argv[1:]))
    """
    with locks.lock("x"):
        process = command_line.script(code, "ls")
        assert process.wait() == 69
        assert process.stderr_lines == ["holdfast: tables need: pip install 'holdfast[cli]'"]
    assert command_line.script(code, "run", "x", "echo", "ran").succeed() == "ran\n"


SLOW = (
    "_hashlib",
    "asyncio",
    "bz2",
    "click",
    "ctypes",
    "email",
    "holdfast.core.canonical",
    "holdfast.core.handover",
    "holdfast.fencing.sql",
    "importlib.metadata",
    "lzma",
    "pydantic",
    "rich",
    "secrets",
    "shutil",
    "ssl",
    "subprocess",
    "typer",
    "unittest",
)


def test_running_a_command_waits_for_no_slow_library(
    command_line: CommandLine, locks: holdfast.Client
) -> None:
    locks.lock("x").locked()  # The file exists: creating it needs more.
    code = """
        import sys
        from holdfast.cli import main
        print("status", main(["run", "x", "--", "true"]))
        print("loaded:", *sorted(sys.modules))
    """
    process = command_line.script(code)
    assert process.expect("status") == "0"
    loaded = set(process.expect("loaded:").split())
    assert "holdfast.cli.wrapper" in loaded
    assert not loaded.intersection(SLOW)


def test_a_command_that_takes_no_lock_imports_neither_client_nor_engine(command_line: CommandLine) -> None:
    code = """
        import sys
        from holdfast.cli import main
        print("status", main(["--version"]))
        print("loaded:", *sorted(sys.modules))
    """
    process = command_line.script(code)
    process.expect("status")
    loaded = set(process.expect("loaded:").split())
    assert "holdfast.cli.app" in loaded
    assert not loaded.intersection(SLOW)
    assert not loaded & {
        "holdfast.client",
        "holdfast.engines",
        "holdfast.model",
        "socket",
        "sqlite3",
        "urllib",
    }


@pytest.mark.parametrize(
    ("word", "meant"), [("lock", "run"), ("list", "ls"), ("unlock", "break"), ("lss", "ls")]
)
def test_a_word_of_other_programs_is_answered_with_ours(
    command_line: CommandLine, word: str, meant: str
) -> None:
    process = command_line.finish(word, "x")
    assert process.returncode == 64
    assert f"did you mean {meant!r}" in process.stderr_lines[0]


def test_a_mistyped_option_is_answered_with_the_right_one(command_line: CommandLine) -> None:
    assert "did you mean '--timeout'?" in command_line.finish("run", "x", "--timout", "5", "true").stderr


def test_an_option_before_the_command_is_answered_with_its_place(command_line: CommandLine) -> None:
    process = command_line.finish("--url", "memory://", "ls")
    assert process.returncode == 64
    assert "no option --url before the command: write options after the command" in process.stderr_lines[0]
