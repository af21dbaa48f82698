"""Waiting for the end of a thread of ours, whatever it is doing."""

from __future__ import annotations

import threading

__all__ = ["join_thread"]


def join_thread(thread: threading.Thread | None, seconds: float) -> None:
    """Not for our own; nor for one that is just being started: that finds out by itself that it is over."""
    if thread is not None and thread is not threading.current_thread() and thread.is_alive():
        thread.join(seconds)
