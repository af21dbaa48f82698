"""The output of the demo: a live display at a terminal, otherwise lines, with --json neither."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from ..output import print_lines, printable

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

__all__ = ["Stage", "stage_for"]

CELL_COLUMNS = 19
CELLS_IN_A_ROW = (10, 5, 4, 2, 1)
"""As many columns as there is room for, and full rows with twenty workers."""
INDENT = 2
STYLES = {
    "idle": "dim",
    "waits": "yellow",
    "HOLDS": "bold green",
    "RAN IT": "bold cyan",
    "BOUGHT": "bold cyan",
    "done": "cyan",
    "stopped": "bold magenta",
    "killed": "bold red",
}
"""The states of a worker on the display."""


class Stage(Protocol):
    """The output of a scene."""

    pace: float
    """1.0: people are watching, so leave time to read; 0.0: no one is watching."""

    def announce(self, title: str, story: str) -> None:
        """A scene begins."""

    def say(self, line: str) -> None:
        """Show an event."""

    def show(self, doing: Mapping[str, str]) -> None:
        """Show what each worker is doing now."""


@contextlib.contextmanager
def stage_for(json: bool) -> Iterator[Stage]:
    if json:
        yield Nowhere()
        return
    if not sys.stdout.isatty():
        yield Lines()
        return
    from rich.console import Console
    from rich.live import Live

    # Drawn at each event, without a drawing thread, so that this process may fork.
    with Live(console=Console(highlight=False), auto_refresh=False, transient=True) as live:
        yield LiveDisplay(live)


class Nowhere:
    """No output but the results, for programs."""

    pace = 0.0

    def announce(self, title: str, story: str) -> None: ...

    def say(self, line: str) -> None: ...

    def show(self, doing: Mapping[str, str]) -> None: ...


class Lines:
    """Lines, for a file or a log."""

    pace = 0.0

    def announce(self, title: str, story: str) -> None:
        print_lines("", title, f"  {story}")

    def say(self, line: str) -> None:
        print_lines(f"  {line}")

    def show(self, doing: Mapping[str, str]) -> None: ...


class LiveDisplay:
    """The lines, and below them a display of all workers that is kept up to date."""

    pace = 1.0

    def __init__(self, live: Live) -> None:
        self._live = live

    def announce(self, title: str, story: str) -> None:
        self._print("", "")
        self._print(title, "bold")
        self._print(story, "dim", INDENT)

    def say(self, line: str) -> None:
        self._print(line, "", INDENT)

    def show(self, doing: Mapping[str, str]) -> None:
        room = (self._live.console.width - INDENT) // CELL_COLUMNS
        cells = next((cells for cells in CELLS_IN_A_ROW if cells <= room), 1)
        self._live.update(_picture(doing, cells), refresh=True)

    def _print(self, text: str, style: str, indent: int = 0) -> None:
        from rich.padding import Padding
        from rich.text import Text

        # Padded, so that a wrapped line stays in its column.
        self._live.console.print(Padding(Text(printable(text), style=style), (0, 0, 0, indent)))


def _picture(doing: Mapping[str, str], cells_in_a_row: int) -> RenderableType:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    cells = [
        Text.assemble((f"{who} ", "dim"), (f"{state:<7}", STYLES.get(state, "")))
        for who, state in doing.items()
    ]
    for first in range(0, len(cells), cells_in_a_row):
        table.add_row(*cells[first : first + cells_in_a_row])
    return Padding(table, (1, 0, 0, INDENT))
