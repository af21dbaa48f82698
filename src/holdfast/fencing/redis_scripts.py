"""The guard's Lua as the server gets it, put together from the files in ``scripts``."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final

__all__ = ["Script", "fenced", "fenced_script", "plain"]

_BODY: Final = "--@body\n"


@dataclass(frozen=True, slots=True)
class Script:
    """One script, and the name by which ``EVALSHA`` knows it."""

    text: bytes
    """Bytes, for what a client makes of text is a matter of its settings, and the name is the text's hash."""
    sha1: str


@cache
def fenced(name: str) -> Script:
    """A write of the guard's own, behind the rule."""
    return _script(_file("fence") + _file(name))


@cache
def plain(name: str) -> Script:
    """What needs no rule in front."""
    return _script(_file(name))


@lru_cache(maxsize=256)
def fenced_script(body: str) -> Script:
    """The caller's script as a function behind the rule.

    The rule comes first and ends the script where it refuses, so that nothing of the body runs before it,
    whatever the body looks like.
    """
    return _script(_file("fence") + _file("eval").replace(_BODY, f"{body}\n"))


@cache
def _file(name: str) -> str:
    return (files(__package__) / "scripts" / f"{name}.lua").read_text(encoding="utf-8")


def _script(text: str) -> Script:
    source = text.encode()
    return Script(source, hashlib.sha1(source, usedforsecurity=False).hexdigest())
