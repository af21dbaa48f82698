"""How a command declares its arguments and options; shared options; durations.

A declaration is data: the parser, the help, the documents and the shell completion read it.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = [
    "JSON",
    "NAME",
    "NAMESPACE",
    "URL",
    "Argument",
    "Command",
    "Group",
    "Misuse",
    "Option",
    "duration",
    "number",
]


class Misuse(Exception):
    """An invalid command line. The text says what is wrong with it."""


@dataclass(frozen=True)
class Argument:
    """A positional argument."""

    name: str
    help: str
    required: bool = True
    many: bool = False
    """It takes all remaining words, as a list."""
    raw: bool = False
    """Parsing stops at its first word: all words after that belong to it, also those that begin with a
    dash."""

    @property
    def metavar(self) -> str:
        return f"{self.name.upper()}{'...' if self.many else ''}"


@dataclass(frozen=True)
class Option:
    """An option, with a value (``metavar``) or without."""

    names: tuple[str, ...]
    help: str
    metavar: str = ""
    """The name of the value in the help; empty: a flag."""
    convert: Callable[[str], Any] = str
    default: Any = None
    shown_default: str = ""
    env: str = ""
    """The environment variable that is used if the option is not given."""
    required: bool = False
    many: bool = False

    @property
    def key(self) -> str:
        """The name of the handler's parameter: the first long form of the option."""
        long = next(name for name in self.names if name.startswith("--"))
        return long[2:].replace("-", "_")


@dataclass(frozen=True)
class Command:
    """One command. Its handler gets the values by name, and returns an exit status or None."""

    handler: Callable[..., int | None]
    params: Sequence[Argument | Option]
    epilog: str = ""

    @property
    def help(self) -> str:
        return self.handler.__doc__ or ""

    @property
    def arguments(self) -> list[Argument]:
        return [param for param in self.params if isinstance(param, Argument)]

    @property
    def options(self) -> list[Option]:
        return [param for param in self.params if isinstance(param, Option)]


@dataclass(frozen=True)
class Group:
    """Commands below one word. Each is named by its module and variable, and imported when it is needed."""

    help: str
    commands: Mapping[str, str]
    epilog: str = ""
    default: str = ""
    """The command that is meant where the first word is none of them."""


DEFAULT_NAMESPACE = "holdfast"

URL = Option(
    ("--url",),
    "The engine. The default is the embedded engine of this user on this machine. "
    "Other users can see command lines: set the environment variable if the URL has a password.",
    metavar="URL",
    env="HOLDFAST_URL",
)
NAMESPACE = Option(
    ("--namespace",),
    "The namespace. The same name in two namespaces is two locks.",
    metavar="NAME",
    default=DEFAULT_NAMESPACE,
    env="HOLDFAST_NAMESPACE",
)
JSON = Option(("--json",), "Print one JSON document, for programs.")
NAME = Argument("name", "The name of the lock.")

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+", re.ASCII)
_PART = re.compile(rf"({_NUMBER.pattern})(ms|s|m|h|d)", re.ASCII)
_DURATION = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)


def duration(text: str) -> float:
    """Seconds, from ``30``, ``1.5`` or with units: ``500ms``, ``90s``, ``5m``, ``1h30m``, ``1d``."""
    written = text.strip().lower()
    if _DURATION.fullmatch(written):
        parts = _PART.findall(written)
        sizes = [UNITS[unit] for _, unit in parts]
        # From the largest unit to the smallest, each once: 30m1h is probably a mistake.
        in_order = all(larger > smaller for larger, smaller in itertools.pairwise(sizes))
        seconds = sum(float(value) * UNITS[unit] for value, unit in parts) if in_order else math.nan
    else:
        seconds = float(written) if _NUMBER.fullmatch(written) else math.nan
    if not math.isfinite(seconds) or seconds < 0:
        raise Misuse(f"{text!r} is not a duration: write seconds, or 500ms, 90s, 5m, 1h30m, 2d")
    return seconds


def number(least: int | None = None, most: int | None = None) -> Callable[[str], int]:
    """Whole numbers within bounds."""

    def convert(text: str) -> int:
        try:
            found = int(text)
        except ValueError:
            raise Misuse(f"{text!r} is not a whole number") from None
        if (least is not None and found < least) or (most is not None and found > most):
            span = f"{least} or more" if most is None else f"from {least} to {most}"
            raise Misuse(f"{found} is out of range: it must be {span}")
        return found

    return convert
