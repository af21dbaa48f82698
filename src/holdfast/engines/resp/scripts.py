"""Lua scripts as the server gets them, assembled from files of the package.

A line ``--@include name`` stands for the file of that name. A script begins with the code of the common case
and includes the rest behind it, because Lua creates functions again in every call that reaches their
definition. For the same reason constants (``local NAME = number`` or a text) are put in place of their names:
each outer name that a function refers to makes it more expensive to create.

The first line declares flags for the server. Scripts that release or renew also run where the server's memory
is full (``allow-oom``). The server refuses the other scripts there before they change anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha1
from importlib.resources import files
from typing import Final, NamedTuple

from .codec import pack_command

__all__ = [
    "Script",
    "inline_constants",
    "is_missing",
    "load_command",
    "make_script",
    "read_script",
    "resolve_includes",
]

_INCLUDE: Final = re.compile(r"^--@include ([\w/]+)$", re.MULTILINE)
_CONSTANT: Final = re.compile(r"^local ([A-Z][A-Z_]*) = ([\d.]+|'[^']*')\n", re.MULTILINE)
_CAPITALS: Final = re.compile(r"\b[A-Z][A-Z_]*\b")


class Script(NamedTuple):
    """One script and the hash by which ``EVALSHA`` knows it."""

    name: str
    source: bytes
    sha1: bytes
    """In hexadecimal."""


def read_script(package: str, name: str) -> str:
    """The file ``scripts/NAME.lua`` of an engine."""
    return (files(package) / "scripts" / f"{name}.lua").read_text(encoding="utf-8")


def resolve_includes(text: str, read: Callable[[str], str]) -> str:
    return _INCLUDE.sub(lambda match: read(match[1]), text)


def inline_constants(text: str) -> str:
    """The text with the values of constants in place of their names."""
    constants = dict(_CONSTANT.findall(text))
    return _CAPITALS.sub(lambda match: constants.get(match[0], match[0]), _CONSTANT.sub("", text))


def make_script(name: str, text: str) -> Script:
    source = text.encode()
    return Script(name, source, sha1(source, usedforsecurity=False).hexdigest().encode())


def load_command(script: Script) -> bytes:
    return pack_command(b"SCRIPT", b"LOAD", script.source)


def is_missing(message: str) -> bool:
    """Whether an error reply says that the server does not have the script."""
    return message.startswith("NOSCRIPT")
