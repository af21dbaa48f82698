"""The options that several commands share, and how a duration is written."""

from __future__ import annotations

import math
from typing import Annotated

import typer

__all__ = ["Json", "Name", "Namespace", "Url", "duration"]

DEFAULT_NAMESPACE = "holdfast"

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="HOLDFAST_URL",
        metavar="URL",
        help="The engine to lock with; without one, the embedded engine of this user on this machine. "
        "Other users see a command line: give a URL with a password in the variable.",
        show_default=False,
    ),
]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace", envvar="HOLDFAST_NAMESPACE", metavar="NAME", help="Names are distinct per namespace."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, for programs.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the lock.", show_default=False)]

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str) -> float:
    """Seconds, from ``30``, ``1.5`` or with a unit: ``500ms``, ``10s``, ``5m``, ``2h``, ``1d``."""
    written = str(text).strip().lower()
    unit = next((unit for unit in UNITS if written.endswith(unit)), "")
    number = written.removesuffix(unit)
    try:
        seconds = float(number) * UNITS.get(unit, 1.0)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds) or seconds < 0:
        raise typer.BadParameter(f"{text!r} is no duration: write seconds, or 500ms, 10s, 5m, 2h, 1d")
    return seconds
