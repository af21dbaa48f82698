"""Connections that are still open when their event loop is closed: nobody can close them any more."""

from __future__ import annotations

from asyncio import selector_events
from typing import Any

from .noting import Noted

__all__ = ["left_open", "watch_loops"]

_left_open: Noted[str] = Noted()


def watch_loops() -> None:
    """From now on every loop that is closed is looked at."""
    shipped: Any = selector_events.BaseSelectorEventLoop.close

    def close(loop: Any) -> None:
        if not loop.is_closed():
            for transport in list(loop._transports.values()):
                if transport._sock is not None:
                    _left_open.note(f"{transport.get_protocol()!r} at {transport!r}")
        shipped(loop)

    selector_events.BaseSelectorEventLoop.close = close  # type: ignore[method-assign,assignment]  # for the whole run


def left_open() -> list[str]:
    """What was left open since this was last asked."""
    return _left_open.since_last_asked()
