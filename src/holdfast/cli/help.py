"""The output of ``--help``: plain text, made from the declarations of the commands."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from .options import Argument, Command, Group, Option
from .parser import load

__all__ = ["help_of", "summary"]

WIDEST = 100
HELP_OPTION = Option(("-h", "--help"), "Show this.")
VERSION_OPTION = Option(("--version",), "Print the version.")


def help_of(found: Command | Group, path: Sequence[str]) -> str:
    """The help of a command or of a group."""
    width = max(40, min(WIDEST, shutil.get_terminal_size().columns))
    program = " ".join(path)
    if isinstance(found, Group):
        usage = f"{program} COMMAND ..."
        options = [*([VERSION_OPTION] if len(path) == 1 else []), HELP_OPTION]
        lists = [
            ("Options", [(_names(each), each.help) for each in options]),
            ("Commands", [(name, summary(load(place))) for name, place in found.commands.items()]),
        ]
    else:
        words = [_in_usage(each) for each in found.arguments]
        usage = " ".join([program, "[OPTIONS]", *words])
        lists = [
            ("Arguments", [(each.metavar, each.help) for each in found.arguments]),
            ("Options", [(_names(each), _explained(each)) for each in (*found.options, HELP_OPTION)]),
        ]
    parts = [f"Usage: {usage}", *_paragraphs(found.help, width)]
    parts += [f"{title}:\n{_columns(rows, width)}" for title, rows in lists if rows]
    if found.epilog:
        parts.append(found.epilog.strip())
    return "\n\n".join(parts) + "\n"


def summary(found: Command | Group) -> str:
    """The first sentence."""
    return " ".join(found.help.strip().partition("\n\n")[0].split()).rstrip(".")


def _in_usage(argument: Argument) -> str:
    shown = f"[--] {argument.metavar}" if argument.raw else argument.metavar
    return shown if argument.required else f"[{shown}]"


def _names(option: Option) -> str:
    names = ", ".join(option.names)
    return f"{names} {option.metavar}" if option.metavar else names


def _explained(option: Option) -> str:
    notes = [f"env: {option.env}"] if option.env else []
    if option.shown_default or (option.metavar and option.default not in {None, ""}):
        notes.append(f"default: {option.shown_default or option.default}")
    notes += ["required"] if option.required else []
    return option.help + (f"  [{'; '.join(notes)}]" if notes else "")


def _paragraphs(text: str, width: int) -> list[str]:
    return [
        textwrap.fill(" ".join(part.split()), width, initial_indent="  ", subsequent_indent="  ")
        for part in textwrap.dedent(text).strip().split("\n\n")
    ]


def _columns(rows: Sequence[tuple[str, str]], width: int) -> str:
    """Two columns: names, and their descriptions. A long name has its own line."""
    left = min(28, max(len(name) for name, _ in rows) + 4)
    lines = []
    for name, text in rows:
        filled = textwrap.fill(text, width, initial_indent=" " * left, subsequent_indent=" " * left)
        head = f"  {name}"
        lines.append(head + filled[len(head) :] if len(head) < left - 1 else f"{head}\n{filled}")
    return "\n".join(lines)
