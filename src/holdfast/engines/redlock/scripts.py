"""The Lua scripts of a Redlock node."""

from __future__ import annotations

from functools import cache
from typing import Final

from ..resp.scripts import Script, inline_constants, make_script, read_script, resolve_includes

__all__ = ["NAMES", "assemble", "load"]

NAMES: Final = (
    "acquire",
    "stamp",
    "release",
    "renew",
    "export",
    "adopt",
    "inspect",
    "list_page",
    "raise_fences",
    "change_mark",
)


@cache
def _read(name: str) -> str:
    return read_script(__package__, name)


def assemble(name: str) -> str:
    """The whole text of a script, with constants under their names."""
    return resolve_includes(_read(name), _read)


@cache
def load() -> dict[str, Script]:
    return {name: make_script(name, inline_constants(assemble(name))) for name in NAMES}
