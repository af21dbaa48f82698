"""Which functions ``@optimistic`` takes. No I/O."""

from __future__ import annotations

import inspect
from typing import Literal

from ..errors import InvalidArgument

__all__ = ["check_rerunnable"]


def check_rerunnable(function: object, wanted: Literal["plain", "async"]) -> None:
    """What is started and not run here could not be run again."""
    if not callable(function):
        raise InvalidArgument(
            f"@optimistic() stands above a function; this is {function!r}: write the brackets"
        )
    name = getattr(function, "__qualname__", repr(function))
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgument(f"{name} is a generator: its body would run outside of @optimistic")
    if inspect.iscoroutinefunction(function) != (wanted == "async"):
        instead, kind = (
            ("holdfast.optimistic.aio", "an async")
            if wanted == "plain"
            else ("holdfast.optimistic", "a plain")
        )
        raise InvalidArgument(f"{name} is {kind} function: use {instead}.optimistic")
