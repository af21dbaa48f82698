"""Commands shown in the documents exist: every subcommand, every option, every make target.

Shell blocks tagged ``console`` hold lines that a person types, after ``$``; the other lines are output.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

import holdfast.cli
from docs.documents import ROOT, blocks_of, documents


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


def complaints(words: list[str], root: Any) -> list[str]:
    """What is wrong with a ``holdfast`` command line, by the command tree itself."""
    command, rest = root, list(words)
    while hasattr(command, "commands") and (index := first_argument(rest, command)) is not None:
        name = rest.pop(index)
        if name not in command.commands:
            return [f"no subcommand {name!r}; there are {', '.join(sorted(command.commands))}"]
        wrong = unknown_options(rest[:index], command)
        if wrong:
            return wrong
        command, rest = command.commands[name], rest[index:]
    return unknown_options(rest, command)


def first_argument(words: list[str], command: Any) -> int | None:
    """Where the first word stands that is neither an option nor an option's value."""
    takes_value = {name for option in options_of(command) if not option.is_flag for name in option.opts}
    skip = False
    for index, word in enumerate(words):
        if skip:
            skip = False
        elif not word.startswith("-"):
            return index
        else:
            skip = word in takes_value
    return None


def unknown_options(words: list[str], command: Any) -> list[str]:
    known = {name for option in options_of(command) for name in (*option.opts, *option.secondary_opts)}
    known |= {"--help"}
    return [
        f"no option {word!r} of {command.name!r}; there are {', '.join(sorted(known))}"
        for word in words
        if re.match(r"^--?[A-Za-z]", word) and word.partition("=")[0] not in known
    ]


def options_of(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if parameter.param_type_name == "option"]


def command_tree() -> Any:
    """The root of the command line, as the CLI library describes it."""
    modules = [holdfast.cli] + [
        importlib.import_module(f"holdfast.cli.{found.name}")
        for found in pkgutil.iter_modules(holdfast.cli.__path__)
        if found.name != "__main__"
    ]
    apps = [value for module in modules for value in vars(module).values() if isinstance(value, typer.Typer)]
    # Groups of subcommands are apps too; the root is the one that knows the most.
    return max(
        (typer.main.get_command(app) for app in apps), key=lambda app: len(getattr(app, "commands", ()))
    )


def test_commands_in_the_documents_exist() -> None:
    tree = command_tree()
    wrong = [
        f"{place}\n    {what}"
        for place, words in shown_commands("holdfast")
        for what in complaints(words, tree)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_command_is_in_the_documents() -> None:
    text = "".join(path.read_text() for path in documents())
    missing = [name for name in command_tree().commands if f"holdfast {name}" not in text]
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
    tree = command_tree()
    assert complaints(["ls"], tree) == []
    assert "no subcommand" in complaints(["lss"], tree)[0]
    assert "no option" in complaints(["ls", "--jsonn"], tree)[0]
    assert complaints(["run", "x", "--ttl", "5"], tree) == []


def test_documents_are_found() -> None:
    assert ROOT / "README.md" in documents()
    assert all(isinstance(path, Path) for path in documents())
