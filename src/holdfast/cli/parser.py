"""The parser of command lines, which uses the declarations of the commands.

Options may be between arguments, unless an argument takes all the rest: the options of ``run`` end at the
first word of the command, as with flock(1), env(1) and timeout(1).
"""

from __future__ import annotations

import getopt
import importlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from .options import Command, Group, Misuse, Option

__all__ = ["HelpWanted", "load", "parse", "read_options", "resolve"]

HELP = ("-h", "--help")

MEANT = {
    "acquire": "run",
    "check": "doctor",
    "exec": "run",
    "flock": "run",
    "inspect": "show",
    "install": "init",
    "list": "ls",
    "lock": "run",
    "locks": "ls",
    "release": "break",
    "status": "show",
    "unlock": "break",
    "with": "run",
}
"""Words that other programs use for these commands."""


class HelpWanted(Exception):
    """The command line contains ``--help``."""


def load(place: str) -> Command | Group:
    """The command at ``module:VARIABLE``."""
    module, _, variable = place.partition(":")
    found: Command | Group = getattr(importlib.import_module(f".{module}", __package__), variable)
    return found


def resolve(root: Group, words: Sequence[str], path: list[str]) -> tuple[Command | Group, Sequence[str]]:
    """The command that the first words name, and the remaining words. Its name is appended to ``path``."""
    found: Command | Group = root
    while isinstance(found, Group) and words:
        if words[0] in found.commands:
            path.append(words[0])
            found, words = load(found.commands[words[0]]), words[1:]
        elif found.default and words[0] not in HELP:
            found = load(found.commands[found.default])
        elif words[0].startswith("-"):
            break
        else:
            raise Misuse(_no_such_command(words[0], found))
    return found, words


def parse(command: Command, words: Sequence[str], environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The values for the handler, by name. Raises ``Misuse`` or ``HelpWanted``."""
    given, plain = read_options(command, words)
    values: dict[str, Any] = {}
    for option in command.options:
        values[option.key] = given[option] if option in given else _default(option, environ)
    for argument in command.arguments:
        if argument.many:
            values[argument.name], plain = plain, []
        else:
            values[argument.name] = plain.pop(0) if plain else None
        # An empty name is passed on: the handler rejects it.
        if argument.required and values[argument.name] in (None, []):
            raise Misuse(f"{argument.metavar} is missing")
    if plain:
        raise Misuse(f"unexpected argument {plain[0]!r}")
    return values


def read_options(command: Command, line: Sequence[str]) -> tuple[dict[Option, Any], list[str]]:
    """The values of the given options, and the other words."""
    words = list(line)
    by_name = {name: option for option in command.options for name in option.names}
    raw_from = next((place for place, each in enumerate(command.arguments) if each.raw), None)
    given: dict[Option, list[str]] = {}
    plain: list[str] = []
    while words:
        word = words[0]
        if word == "--":
            plain += words[1:]
            break
        if not word.startswith("-") or word == "-":
            if len(plain) == raw_from:
                plain += words
                break
            plain.append(words.pop(0))
            continue
        for name, value in _read_options(words, by_name):
            if name in HELP:
                raise HelpWanted
            given.setdefault(by_name[name], []).append(value)
    if raw_from is not None and plain[raw_from : raw_from + 1] == ["--"]:
        del plain[raw_from]  # "-- NAME -- COMMAND"
    return {option: _converted(option, texts) for option, texts in given.items()}, plain


def _read_options(words: list[str], by_name: Mapping[str, Option]) -> list[tuple[str, str]]:
    """Remove the options of the first word from the list, and the second word if it is their value."""
    short = "h" + "".join(n[1] + (":" if o.metavar else "") for n, o in by_name.items() if n[1] != "-")
    long = ["help", *(n[2:] + ("=" if o.metavar else "") for n, o in by_name.items() if n[1] == "-")]
    for taken in (1, 2):
        try:
            found, _ = getopt.getopt(words[:taken], short, long)
        except getopt.GetoptError as error:
            option = by_name.get(_dashed(error.opt))
            lacks_value = option is not None and option.metavar
            if not lacks_value or taken == 2 or len(words) == 1:
                raise Misuse(_explain(error, by_name)) from None
        else:
            del words[:taken]
            return found
    raise AssertionError("the second round returns or raises")


def _converted(option: Option, texts: Sequence[str]) -> Any:
    if not option.metavar:
        return True
    try:
        return [option.convert(text) for text in texts] if option.many else option.convert(texts[-1])
    except Misuse as error:
        raise Misuse(f"{'/'.join(option.names)}: {error}") from None


def _default(option: Option, environ: Mapping[str, str]) -> Any:
    if option.required:
        raise Misuse(f"{option.names[0]} is missing")
    if option.env and environ.get(option.env):
        return _converted(option, [environ[option.env]])
    if option.many:
        return []
    return option.default if option.metavar else False


def _explain(error: getopt.GetoptError, by_name: Mapping[str, Option]) -> str:
    """The message of ``getopt`` in the words of this program, with a suggestion."""
    name = _dashed(error.opt)
    option = by_name.get(name)
    if option is not None and option.metavar:
        return f"{name} needs a value: {name} {option.metavar}"
    if option is not None:
        return f"{name} does not take a value"
    if "unique prefix" in error.msg:
        return f"{name} is ambiguous: write the option in full"
    return f"there is no option {name}{_did_you_mean(name, [*by_name, '--help'])}"


def _dashed(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name}"


def _no_such_command(word: str, group: Group) -> str:
    meant = MEANT.get(word.lower())
    if meant in group.commands:
        return f"there is no command {word!r}: did you mean {meant!r}?"
    return f"there is no command {word!r}{_did_you_mean(word, list(group.commands))}"


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word, known, n=1)
    return f": did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}"
