"""The Lua scripts as the server gets them: put together from files that are part of the package.

A line ``--@include name`` stands for the file of that name. Scripts begin with what the common case needs
and include the rest behind it: functions are made anew by every call that reaches their definition. For the
same reason constants (``local NAME = number``, or a text) are put in place of their names, since every name
from outside that a function refers to makes it dearer.

The first line says what the server may do with a script. Those that give back or keep what is held also run
where its memory is full (``allow-oom``); the others are refused there before they have changed anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final, NamedTuple

__all__ = ["NAMES", "Script", "assemble", "inline_constants", "load", "make_script", "resolve_includes"]

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
    "renew_batch",
    "apply_in_order",
)

_INCLUDE: Final = re.compile(r"^--@include ([\w/]+)$", re.MULTILINE)
_CONSTANT: Final = re.compile(r"^local ([A-Z][A-Z_]*) = ([\d.]+|'[^']*')\n", re.MULTILINE)
_CAPITALS: Final = re.compile(r"\b[A-Z][A-Z_]*\b")


class Script(NamedTuple):
    """One script, under the name by which ``EVALSHA`` knows it."""

    name: str
    source: bytes
    sha1: bytes
    """In hexadecimal."""


@cache
def _file(name: str) -> str:
    return (files(__package__) / "scripts" / f"{name}.lua").read_text(encoding="utf-8")


def assemble(name: str, sharded: bool = False) -> str:
    """The whole text of a script, for people to read."""

    def file_of(part: str) -> str:
        return _file("rules/sharded_channels" if sharded and part == "rules/channels" else part)

    return resolve_includes(_file(name), file_of)


def resolve_includes(text: str, file_of: Callable[[str], str]) -> str:
    return _INCLUDE.sub(lambda match: file_of(match[1]), text)


def inline_constants(text: str) -> str:
    """The same for the server: constants in place of their names."""
    constants = dict(_CONSTANT.findall(text))
    return _CAPITALS.sub(lambda match: constants.get(match[0], match[0]), _CONSTANT.sub("", text))


@cache
def load(sharded: bool) -> dict[str, Script]:
    """All scripts; for a Cluster they publish to sharded channels."""
    return {name: make_script(name, inline_constants(assemble(name, sharded))) for name in NAMES}


def make_script(name: str, text: str) -> Script:
    source = text.encode()
    return Script(name, source, sha1(source, usedforsecurity=False).hexdigest().encode())
