"""How results are printed: JSON for programs, tables for people.

Rich is imported when a table is printed, not before: most runs of ``holdfast`` print none.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
"""If the output is not a terminal, lines are not wrapped, so that grep and awk can process them."""


class OutputFailed(Exception):
    """Standard output could not be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.strerror or str(error))
        self.errno = error.errno


def repair_streams() -> None:
    """Let closed standard streams fail when they are used, and escape characters that they cannot encode.

    Otherwise the next file or socket would get the descriptor of a closed stream, and receive its output.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # Opened in the wrong direction, so that using it fails as with a closed stream. open() returns
            # the lowest free descriptor, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_WRONLY if descriptor == 0 else os.O_RDONLY), True)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - it stays open as long as the process
    if sys.stderr is None:
        # Otherwise ``print`` would use standard output instead.
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - it stays open as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_text(text: str) -> None:
    """Write text unchanged. All of standard output passes here."""
    with _failing_as_output():
        sys.stdout.write(text)
        sys.stdout.flush()


@contextlib.contextmanager
def _failing_as_output() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # The remaining buffer would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise OutputFailed(error) from None


def print_json(document: object, indent: int | None = 2) -> None:
    """Print one JSON document. A number that JSON cannot express (infinity) becomes null."""
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
    """Print names with their values in lines. A sequence gets a line for each of its items."""
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
    # Rich would handle a closed pipe in its own way, so it does not write by itself, but for an empty text.
    # Without a buffer (PYTHONUNBUFFERED) even that fails on a full disk.
    with _failing_as_output(), console.capture() as capture:
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
