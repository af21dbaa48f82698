"""``holdfast advise``: by options, by JSON, and asked at a terminal."""

from __future__ import annotations

import json
import sys

import pytest

from cli.tools import CommandLine, at_a_terminal


def test_all_answers_by_options(command_line: CommandLine) -> None:
    said = command_line.start(
        "advise", "--problem", "section", "--stakes", "correctness", "--checks", "sql", "--have", "sqlite"
    ).succeed()
    assert "A lock, and a guard in the database" in said
    assert "fencing.transaction(db, lease" in said
    assert "scope: user" in said
    assert "What can still go wrong:" in said


def test_one_json_document(command_line: CommandLine) -> None:
    said = json.loads(
        command_line.start("advise", "--problem", "value", "--have", "redis", "--json").succeed()
    )
    assert said["way"] == "cell"
    assert said["guarantees"]["scope"] == "cluster"
    assert "locks.cell(" in said["code"]
    assert said["answers"] == {"problem": "value", "have": "redis"}


def test_what_needs_no_lock_names_no_engine(command_line: CommandLine) -> None:
    arguments = ("--problem", "rows", "--statement", "yes", "--have", "postgresql", "--json")
    said = json.loads(command_line.start("advise", *arguments).succeed())
    assert said["guarantees"] is None
    assert "import holdfast\n" not in said["code"]


def test_without_a_terminal_the_next_question_is_printed(command_line: CommandLine) -> None:
    process = command_line.finish("advise", "--problem", "section")
    assert process.returncode == 64
    assert "--stakes correctness" in process.stderr
    process = command_line.finish("advise", "--problem", "section", "--json")
    assert process.returncode == 64
    assert json.loads(process.stdout)["question"] == "stakes"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--problem", "lock"), "'lock' is no answer to --problem: choose request, value, rows"),
        (("--problem", "value", "--have", "redlock"), "does not work on redlock: choose sqlite, redis"),
        (
            ("--problem", "rows", "--statement", "no", "--row", "no", "--have", "sqlite"),
            "does not work on sqlite: choose postgresql",
        ),
    ],
)
def test_an_impossible_answer_is_refused(
    command_line: CommandLine, arguments: tuple[str, ...], said: str
) -> None:
    process = command_line.finish("advise", *arguments)
    assert process.returncode == 64
    assert said in process.stderr


@pytest.mark.realtime
def test_at_a_terminal_it_asks(command_line: CommandLine) -> None:
    process = at_a_terminal(command_line, sys.executable, "-m", "holdfast", "advise", "--problem", "section")
    process.expect("What happens if, very rarely,")
    process.send("7")
    process.expect("> a number from 1 to 2, please")
    process.send("efficiency")
    process.expect("> ")
    process.send("1")
    process.expect("> ")
    process.send("1")
    process.expect("> ")
    process.expect("A lock with a lease")
    assert process.expect("status") == "0"
