"""The Lua scripts as the server gets them: put together from files that are part of the package.

A line ``--@include name`` stands for the file of that name. Scripts begin with what the common case needs
and include the rest behind it: functions are made anew by every call that reaches their definition.
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final, NamedTuple

__all__ = ["NAMES", "Script", "load", "source_of"]

NAMES: Final = (
    "acquire",
    "release",
    "withdraw",
    "renew",
    "refresh",
    "stop",
    "export",
    "adopt",
    "downgrade",
    "break",
    "set_value",
    "resize",
    "watch",
    "unwatch",
    "inspect",
    "tend",
    "in_order",
)

_INCLUDE: Final = re.compile(r"^--@include ([\w/]+)$", re.MULTILINE)


class Script(NamedTuple):
    """One script, under the name by which ``EVALSHA`` knows it."""

    name: str
    source: bytes
    sha1: bytes
    """In hexadecimal."""


@cache
def _file(name: str) -> str:
    return (files(__package__) / "scripts" / f"{name}.lua").read_text(encoding="utf-8")


def source_of(name: str, sharded: bool = False) -> str:
    """The whole text of a script."""

    def included(match: re.Match[str]) -> str:
        return _file("rules/sharded_channels" if sharded and match[1] == "rules/channels" else match[1])

    return _INCLUDE.sub(included, _file(name))


@cache
def load(sharded: bool) -> dict[str, Script]:
    """All scripts; for a Cluster they publish to sharded channels."""
    return {name: _script(name, source_of(name, sharded).encode()) for name in NAMES}


def _script(name: str, source: bytes) -> Script:
    return Script(name, source, sha1(source, usedforsecurity=False).hexdigest().encode())
