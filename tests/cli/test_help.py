"""Help that teaches, a quick start, and what happens without the extra."""

from __future__ import annotations

import importlib.metadata

import pytest

from cli.tools import CommandLine
from holdfast.cli.exits import Status

COMMANDS = ["run", "ls", "show", "watch", "break", "guarantees"]


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


def test_without_typer_one_line_says_what_to_install(command_line: CommandLine) -> None:
    code = """
        import sys
        sys.modules["typer"] = None
        from holdfast.cli import main
        sys.exit(main(["ls"]))
    """
    process = command_line.script(code)
    assert process.wait() == 69
    assert process.stderr_lines == ["holdfast: the command line needs: pip install 'holdfast[cli]'"]


def test_running_a_command_does_not_wait_for_rich(command_line: CommandLine) -> None:
    code = """
        import sys
        from holdfast.cli import main
        print("status", main(["run", "x", "--", "true"]))
        print("rich loaded:", "rich" in sys.modules)
    """
    process = command_line.script(code)
    assert process.expect("status") == "0"
    assert process.expect("rich loaded:") == "False"
