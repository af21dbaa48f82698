"""The Lua scripts of a node as the server gets them; how they are put together is Redis' own ``loading``."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from ..redis.scripts import Script, script, with_constants, with_includes

__all__ = ["NAMES", "assembled", "load"]

NAMES: Final = (
    "acquire",
    "stamp",
    "release",
    "renew",
    "export",
    "adopt",
    "look",
    "page",
    "raise",
    "change",
)


@cache
def _file(name: str) -> str:
    return (files(__package__) / "scripts" / f"{name}.lua").read_text(encoding="utf-8")


def assembled(name: str) -> str:
    """The whole text of a script, for people to read."""
    return with_includes(_file(name), _file)


@cache
def load() -> dict[str, Script]:
    return {name: script(name, with_constants(assembled(name))) for name in NAMES}
