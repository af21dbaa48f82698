"""How results are printed: JSON for programs, tables for people.

Rich is imported when a table is printed, not before: most runs of ``holdfast`` print none.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["age", "print_json", "print_lines", "print_pairs", "print_table", "printable"]

STATUS_OF_A_CLOSED_PIPE = 141
"""As a shell reports a program that SIGPIPE ended."""
UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
WIDTH_OF_A_FILE = 4096
"""Away from a terminal nothing is wrapped: lines belong to grep and awk there."""


def print_json(document: object, indent: int | None = 2) -> None:
    """Print one JSON document. What is not a JSON number (an endless time) becomes null."""
    with _until_the_reader_leaves():
        print(json.dumps(_finite(document), indent=indent, ensure_ascii=False, allow_nan=False), flush=True)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with a heading; cells are text, never markup."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title, style="bold") if title else None, title_justify="left", box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    _print(table)


def print_pairs(pairs: Mapping[str, str | Sequence[str]]) -> None:
    """Print names with their values, one below the other; a sequence has a line for each of its own."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        lines = [value] if isinstance(value, str) else value
        table.add_row(Text(name), Text("\n".join(map(printable, lines))))
    _print(table)


def print_lines(*lines: str) -> None:
    with _until_the_reader_leaves():
        for line in lines:
            print(printable(line))
        sys.stdout.flush()


def printable(text: str) -> str:
    """The text with control characters spelled out: a name must not be able to steer the terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def age(seconds: float) -> str:
    """A length of time for people: ``0.4 s``, ``12 s``, ``3 m 20 s``, ``2 h 5 m``, ``4 d 3 h``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds == float("inf"):
        return "no end"
    whole = int(seconds)
    for (unit, size), (smaller, smaller_size) in itertools.pairwise(UNITS):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller_size} {smaller}"
    return f"{whole} s"


def _print(table: Table) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE)
    # Rich has its own idea of what to do when the reader leaves, so it does not write itself.
    with console.capture() as capture:
        console.print(table)
    with _until_the_reader_leaves():
        print(capture.get(), end="", flush=True)


@contextlib.contextmanager
def _until_the_reader_leaves() -> Iterator[None]:
    """``holdfast ls | head -1`` ends quietly."""
    try:
        yield
    except BrokenPipeError:
        # What is still buffered would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(STATUS_OF_A_CLOSED_PIPE) from None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) if value - value == 0 else None  # Only infinity and NaN differ.
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
