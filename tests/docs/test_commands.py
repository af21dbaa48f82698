"""Commands shown in the documents exist: every subcommand, every option, every make target.

Shell blocks tagged ``console`` hold lines that a person types, after ``$``; the other lines are output.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from docs.documents import ROOT, blocks_of, documents
from holdfast.cli.app import ROOT as COMMANDS
from holdfast.cli.options import Group, Misuse
from holdfast.cli.parser import HelpWanted, read_options, resolve


def typed_lines(text: str) -> list[str]:
    """What follows a ``$``, with continued lines joined. In a block without any ``$``, every line."""
    joined = re.sub(r"\s*\\\n\s*(?:> )?", " ", text)
    prompted = [line.lstrip()[1:].strip() for line in joined.splitlines() if line.lstrip().startswith("$ ")]
    return prompted or [line.strip() for line in joined.splitlines() if line.strip()]


def simple_commands(line: str) -> list[list[str]]:
    """The words of each command of a line, split at pipes, lists and ``--``, without assignments before it.

    ``holdfast run x -- holdfast ls`` is two commands; ``A=1 holdfast ls | head`` begins with one.
    """
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word == "--" or set(word) <= set("|&;<>()"):
            commands.append([])
        elif commands[-1] or not re.match(r"^\w+=", word):
            commands[-1].append(word)
    return [command for command in commands if command]


def shown_commands(program: str) -> list[tuple[str, list[str]]]:
    """(place, words after the program) of every use of a program in the documents."""
    return [
        (f"{block}: {line}", command[1:])
        for path in documents()
        for block in blocks_of(path)
        if block.language == "console"
        for line in typed_lines(block.code)
        for command in simple_commands(line)
        if command[0] == program
    ]


def complaints(words: list[str]) -> list[str]:
    """What is wrong with a ``holdfast`` command line, by what the commands declare."""
    path: list[str] = []
    try:
        command, rest = resolve(COMMANDS, [word for word in words if word != "--version"], path)
        if isinstance(command, Group):
            wrong = [word for word in rest if word not in {"-h", "--help"}]
            return [f"no option {word!r}" for word in wrong]
        # Environment and required words are not what a document shows; what it shows must be known.
        read_options(command, rest)
    except Misuse as error:
        return [str(error)]
    except HelpWanted:
        return []
    return []


def test_commands_in_the_documents_exist() -> None:
    wrong = [
        f"{place}\n    {what}" for place, words in shown_commands("holdfast") for what in complaints(words)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_command_is_in_the_documents() -> None:
    text = "".join(path.read_text() for path in documents())
    missing = [name for name in COMMANDS.commands if f"holdfast {name}" not in text]
    assert not missing, f"no document mentions: {missing}"


def test_make_targets_in_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    wrong = [
        f"{place}: no target {word!r}"
        for place, words in shown_commands("make")
        for word in words
        if re.fullmatch(r"[a-z-]+", word) and word not in targets
    ]
    assert not wrong, "\n".join(wrong)


# The reader itself


@pytest.mark.parametrize(
    ("line", "commands"),
    [
        ("holdfast ls --json | head -3", [["holdfast", "ls", "--json"], ["head", "-3"]]),
        ("A=1 holdfast ls", [["holdfast", "ls"]]),
        ("holdfast run x -- holdfast ls", [["holdfast", "run", "x"], ["holdfast", "ls"]]),
        ("make test && make check", [["make", "test"], ["make", "check"]]),
        ("holdfast run 'a name' --ttl=5", [["holdfast", "run", "a name", "--ttl=5"]]),
    ],
)
def test_lines_are_split_as_a_shell_would(line: str, commands: list[list[str]]) -> None:
    assert simple_commands(line) == commands


def test_only_what_is_typed_counts() -> None:
    assert typed_lines("$ holdfast ls\nNAME  KIND\n$ make \\\n    test\n") == [
        "holdfast ls",
        "make test",
    ]
    assert typed_lines("make run\n") == ["make run"]


def test_wrong_commands_are_seen() -> None:
    assert complaints(["ls"]) == []
    assert "no command" in complaints(["lss"])[0]
    assert "no option" in complaints(["ls", "--jsonn"])[0]
    assert "not a duration" in complaints(["run", "x", "--ttl", "soon"])[0]
    assert complaints(["run", "x", "--ttl", "5"]) == []
    assert complaints(["run", "x", "ls", "--whatever"]) == []


def test_documents_are_found() -> None:
    assert ROOT / "README.md" in documents()
    assert all(isinstance(path, Path) for path in documents())
