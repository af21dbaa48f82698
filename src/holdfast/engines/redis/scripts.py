"""The Lua scripts of the Redis engine."""

from __future__ import annotations

from functools import cache
from typing import Final

from ..resp.scripts import Script, inline_constants, make_script, read_script, resolve_includes

__all__ = ["NAMES", "assemble", "load"]

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
    "read_cell",
    "swap_cell",
    "resize",
    "watch",
    "unwatch",
    "inspect",
    "renew_batch",
    "apply_in_order",
)


@cache
def _read(name: str) -> str:
    return read_script(__package__, name)


def assemble(name: str, sharded: bool = False) -> str:
    """The whole text of a script, with constants under their names."""

    def read(part: str) -> str:
        return _read("rules/sharded_channels" if sharded and part == "rules/channels" else part)

    return resolve_includes(_read(name), read)


@cache
def load(sharded: bool) -> dict[str, Script]:
    """All scripts. ``sharded``: they publish to the sharded channels of a Cluster."""
    return {name: make_script(name, inline_constants(assemble(name, sharded))) for name in NAMES}
