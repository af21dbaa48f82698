"""The Lua scripts of a node as the server gets them; how they are put together is Redis' own ``loading``."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from ..redis.scripts import Script, inline_constants, make_script, resolve_includes

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
def _file(name: str) -> str:
    return (files(__package__) / "scripts" / f"{name}.lua").read_text(encoding="utf-8")


def assemble(name: str) -> str:
    """The whole text of a script, for people to read."""
    return resolve_includes(_file(name), _file)


@cache
def load() -> dict[str, Script]:
    return {name: make_script(name, inline_constants(assemble(name))) for name in NAMES}
