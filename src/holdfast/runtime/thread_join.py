"""Waiting for the end of a background thread."""

from __future__ import annotations

import threading

__all__ = ["join_thread"]


def join_thread(thread: threading.Thread | None, seconds: float) -> None:
    """Join it, unless it is the calling thread or is only starting: that one finds out by itself."""
    if thread is not None and thread is not threading.current_thread() and thread.is_alive():
        thread.join(seconds)
