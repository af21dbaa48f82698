"""The same work in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["in_threads", "join"]


def in_threads(count: int, work: Callable[[], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
