"""A run that waits says for whom; ``ls`` says when there is nothing."""

from __future__ import annotations

import json
import os
import sys

import holdfast
from cli.tools import CommandLine, at_a_terminal

HOLDFAST = (sys.executable, "-m", "holdfast")


def test_at_a_terminal_after_a_second(command_line: CommandLine, locks: holdfast.Client) -> None:
    with locks.lock("x", metadata={"command": "backup\x1b[2J"}) as lease:
        process = at_a_terminal(command_line, *HOLDFAST, "run", "x", "echo", "ran")
        said = process.expect("holdfast: waiting for 'x': held by ")
        assert said.startswith(f"{lease.owner} (backup\\x1b[2J) for ")
        assert f"/{os.getpid()}/" in said
        assert said.endswith(f"token {lease.token}, 1 waiting")
    process.expect("ran")
    assert process.expect("status") == "0"


def test_elsewhere_only_when_asked(command_line: CommandLine, locks: holdfast.Client) -> None:
    with locks.lock("x"):
        quiet = command_line.finish("run", "-w", "1.5", "x", "true")
        loud = command_line.finish("run", "-v", "-w", "1.5", "x", "true")
    assert (quiet.returncode, loud.returncode) == (75, 75)
    assert len(quiet.stderr_lines) == 1
    assert any(line.startswith("holdfast: waiting for 'x': held by ") for line in loud.stderr_lines)


def test_nothing_is_held(command_line: CommandLine, locks: holdfast.Client) -> None:
    assert command_line.start("ls").succeed() == "no lock is held\n"
    with locks.lock("x") as lease:
        lease.set_value(b"kept")
    assert command_line.start("ls").succeed() == "no lock is held (1 free with a value, shown by --all)\n"
    assert command_line.start("ls", "b/").succeed() == "no lock is held with the prefix 'b/'\n"
    assert json.loads(command_line.start("ls", "--json").succeed()) == []
    assert "free" in command_line.start("ls", "--all").succeed()
    assert [lock["name"] for lock in json.loads(command_line.start("ls", "-a", "--json").succeed())] == ["x"]
