"""The three outputs of ``holdfast watch``: JSON lines, lines of text, and a table that is kept up to date."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from holdfast import LockInfo

from .describe import as_json, state
from .exits import complain
from .output import age, print_json, print_lines, printable
from .redaction import scrub

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

__all__ = ["Screen", "screen_for"]

TICK_SECONDS = 1.0
"""The interval between two drawings of a table in which only times have changed."""
PAUSE_SECONDS = 0.1
"""The shortest interval between two drawings: no reader is faster."""
WIDE_COLUMNS = 100
"""A terminal of at least this width has room for tokens and metadata."""
WAITERS_SHOWN = 3
LINES_AROUND_THE_TABLE = 7
Row = tuple[str, ...]


class Screen(Protocol):
    """Where changes are shown."""

    tick_seconds: float | None
    """Draw again after this long even if nothing changed; None: never."""
    pause_seconds: float
    """Let changes gather for this long."""

    def tell(self, change: LockInfo) -> None:
        """Show one change."""

    def draw(self, known: Sequence[tuple[LockInfo, float]], trouble: str) -> None:
        """Show every state with the seconds since it was read, and why the engine cannot be reached, if
        so."""


@contextlib.contextmanager
def screen_for(json: bool) -> Iterator[Screen]:
    if json or not sys.stdout.isatty():
        yield Lines(json)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if console.is_dumb_terminal:
        yield Lines(json)  # This terminal cannot move the cursor back to draw over the table.
        return
    # Drawn on request: a drawing thread would wake up without need.
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield CurrentTable(live)


class Lines:
    """One line for each change, as JSON or for people."""

    tick_seconds: float | None = None
    pause_seconds = 0.0

    def __init__(self, json: bool) -> None:
        self._json = json
        self._troubled = False

    def tell(self, change: LockInfo) -> None:
        if self._json:
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            print_json({"at": moment, **as_json(change)}, indent=None)
        else:
            print_lines(f"{time.strftime('%H:%M:%S')}  {change.name}: {summary(change)}")

    def draw(self, known: Sequence[tuple[LockInfo, float]], trouble: str) -> None:
        """The lines are written already. Report only that the engine cannot be reached, or can be again."""
        if bool(trouble) != self._troubled:
            self._troubled = bool(trouble)
            complain(f"{trouble} (still watching)" if trouble else "the engine can be reached again")


class CurrentTable:
    """One table, drawn in place. Its last state stays when watch ends."""

    tick_seconds: float | None = TICK_SECONDS
    pause_seconds = PAUSE_SECONDS

    def __init__(self, live: Live) -> None:
        self._live = live

    def tell(self, change: LockInfo) -> None:
        """Nothing to do: the next drawing shows it."""

    def draw(self, known: Sequence[tuple[LockInfo, float]], trouble: str) -> None:
        from rich.console import Group
        from rich.text import Text

        console = self._live.console
        shown = _table(known, console.width, console.height)
        if trouble:
            shown = Group(shown, Text(printable(scrub(f"Last known state: {trouble}")), style="red"))
        self._live.update(shown, refresh=True)


def summary(lock: LockInfo) -> str:
    """``held by a/1/main (token 7), 2 waiting``."""
    owners = ", ".join(f"{holder.owner} (token {holder.token})" for holder in lock.holders)
    parts = [f"{state(lock)} by {owners}" if owners else state(lock)]
    if lock.waiters:
        parts.append(f"{len(lock.waiters)} waiting, first {lock.waiters[0].owner}")
    return ", ".join(parts)


def _table(known: Sequence[tuple[LockInfo, float]], width: int, height: int) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    wide = width >= WIDE_COLUMNS
    columns = ("name", "state", "who", "for", "expires in", *(("token", "what") if wide else ()))
    table = Table(box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    room = max(1, height - LINES_AROUND_THE_TABLE)
    # Names in use first: they matter most if not all can be shown.
    blocks = [
        rows_of(lock, seconds)
        for lock, seconds in sorted(known, key=lambda seen: (not seen[0].locked, seen[0].name))
    ]
    shown = 0
    for block in blocks:
        if shown and len(block) > room:
            break
        for row in block[:room]:
            style = {"free": "dim", "waits": "yellow"}.get(row[1].partition(" ")[0], "")
            table.add_row(*(Text(printable(cell)) for cell in row[: len(columns)]), style=style)
        room -= len(block)
        shown += 1
    held = sum(lock.locked for lock, _ in known)
    waiting = sum(len(lock.waiters) for lock, _ in known)
    more = f", {len(blocks) - shown} not shown" if shown < len(blocks) else ""
    if not known:
        return Text("No name is in use. Changes will be shown here. Ctrl-C ends.", style="dim")
    foot = f"{len(known)} watched, {held} held, {waiting} waiting{more}. Ctrl-C ends."
    return Group(table, Text(foot, style="dim"))


def rows_of(lock: LockInfo, seconds: float) -> list[Row]:
    """Cells: name, state, owner, age, remaining time, token, metadata."""
    rows: list[Row] = [
        (
            holder.owner,
            age(holder.age + seconds),
            age(max(0.0, holder.remaining - seconds)),
            str(holder.token),
            ", ".join(f"{key}={value}" for key, value in sorted(holder.metadata.items())),
        )
        for holder in lock.holders
    ] or [("", "", "", "", "")]
    holders = [
        (lock.name, state(lock), *row) if place == 0 else ("", "", *row) for place, row in enumerate(rows)
    ]
    waiters: list[Row] = [
        ("", f"waits {place}.", waiter.owner, age(waiter.age + seconds), "", "", "")
        for place, waiter in enumerate(lock.waiters[:WAITERS_SHOWN], 1)
    ]
    left = len(lock.waiters) - WAITERS_SHOWN
    if left > 0:
        waiters.append(("", "waits", f"and {left} more", "", "", "", ""))
    return [*holders, *waiters]
