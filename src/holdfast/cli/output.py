"""How results are printed: JSON for programs, tables for people.

Rich is imported when a table is printed, not before: most runs of ``holdfast`` print none.
"""

from __future__ import annotations

import io
import itertools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .text import printable, printable_json

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "OutputFailed",
    "age",
    "print_json",
    "print_lines",
    "print_pairs",
    "print_table",
    "print_text",
    "printable",
    "repair_streams",
]

UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
WIDTH_OF_A_FILE = 4096
"""Away from a terminal nothing is wrapped: lines belong to grep and awk there."""


class OutputFailed(Exception):
    """Standard output could not be written, for this reason."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.errno = error.errno


def repair_streams() -> None:
    """Make standard streams that are closed fail when they are used, and other characters than theirs safe.

    The next file or socket would otherwise get the number of a closed stream, and what is written to it.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # The wrong way round, so that using it is the same error as with a closed one. It is the lowest
            # number that is free, therefore this one.
            os.set_inheritable(os.open(os.devnull, os.O_WRONLY if descriptor == 0 else os.O_RDONLY), True)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    if sys.stderr is None:
        # Otherwise ``print`` would take standard output in its place.
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_text(text: str) -> None:
    """Write text of our own as it is. All that goes to standard output goes through here."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # What is still buffered would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise OutputFailed(error) from None


def print_json(document: object, indent: int | None = 2) -> None:
    """Print one JSON document. What is not a JSON number (an endless time) becomes null."""
    import json

    text = json.dumps(_finite(document), indent=indent, ensure_ascii=False, allow_nan=False)
    print_text(printable_json(text) + "\n")


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
    print_text("".join(f"{printable(line)}\n" for line in lines))


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
    print_text(capture.get())


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) if value - value == 0 else None  # Only infinity and NaN differ.
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
