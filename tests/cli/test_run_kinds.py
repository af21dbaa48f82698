"""Reader/writer locks and semaphores on the command line."""

from __future__ import annotations

import sys

import pytest

import holdfast
from cli.tools import CommandLine
from support import Process

HOLD = (sys.executable, "-c", "print('up', flush=True); input()")


def holding(command_line: CommandLine, *options: str) -> Process:
    process = command_line.start("run", "x", *options, "--", *HOLD)
    process.expect("up")
    return process


def status_now(command_line: CommandLine, *options: str) -> int | None:
    return command_line.finish("run", "x", "-n", *options, "--", "true").returncode


def test_readers_share_and_a_writer_is_alone(command_line: CommandLine, locks: holdfast.Client) -> None:
    first, second = holding(command_line, "--shared"), holding(command_line, "--shared")
    assert [holder.mode for holder in locks.inspect("x").holders] == ["read", "read"]
    assert status_now(command_line, "--write") == 75
    for reader in (first, second):
        reader.send()
        assert reader.wait() == 0
    writer = holding(command_line, "--write")
    assert status_now(command_line, "--shared") == 75
    writer.send()
    assert writer.wait() == 0
    assert status_now(command_line, "--shared") == 0


def test_a_semaphore_admits_so_many(command_line: CommandLine) -> None:
    first = holding(command_line, "--limit", "2")
    holding(command_line, "--limit", "2")
    assert status_now(command_line, "--limit", "2") == 75
    first.send()
    assert first.wait() == 0
    assert status_now(command_line, "--limit", "2") == 0


@pytest.mark.parametrize(
    ("made_with", "asked_with", "advice"),
    [
        (["--shared"], [], "--shared or --write"),
        (["--limit", "2"], [], "--limit"),
        ([], ["--shared"], "without"),
    ],
)
def test_another_kind_of_lock_is_refused_with_what_to_write(
    command_line: CommandLine, made_with: list[str], asked_with: list[str], advice: str
) -> None:
    holding(command_line, *made_with)
    process = command_line.finish("run", "x", "-n", *asked_with, "--", "true")
    assert process.returncode == 64
    assert advice in process.stderr


def test_another_limit_is_refused(command_line: CommandLine) -> None:
    holding(command_line, "--limit", "2")
    assert status_now(command_line, "--limit", "3") == 64
