"""The holder that ``run`` waits for: printed after a second of waiting, and if the lock is not granted."""

from __future__ import annotations

import threading
from types import TracebackType

import holdfast

from .exits import complain
from .output import age

__all__ = ["WaitNotice", "holders_text"]

NOTICE_SECONDS = 1.0


def holders_text(client: holdfast.Client, name: str) -> str:
    """``held by host/1/main (make) for 12 s, 2 waiting``; empty if the engine does not answer."""
    try:
        lock = client.inspect(name)
    except (holdfast.HoldfastError, OSError, RuntimeError):
        return ""
    if not lock.holders:
        return "not held at this moment" + (f", {len(lock.waiters)} waiting" if lock.waiters else "")
    first = lock.holders[0]
    what = first.metadata.get("command", "")
    parts = [f"held by {first.owner}{f' ({what})' if what else ''} for {age(first.age)}, token {first.token}"]
    if len(lock.holders) > 1:
        parts.append(f"and {len(lock.holders) - 1} more")
    if lock.waiters:
        parts.append(f"{len(lock.waiters)} waiting")
    return ", ".join(parts)


class WaitNotice:
    """``with WaitNotice(…):`` prints the holder once if the block takes longer than a second.

    A separate thread asks the engine, because the waiting thread is inside the library.
    """

    def __init__(self, client: holdfast.Client, name: str, wanted: bool) -> None:
        self._client = client
        self._name = name
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wait-notice", daemon=True) if wanted else None

    def __enter__(self) -> None:
        if self._thread is not None:
            self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()

    def _run(self) -> None:
        if self._over.wait(NOTICE_SECONDS):
            return
        known = holders_text(self._client, self._name)
        if not self._over.is_set():
            complain(f"waiting for {self._name!r}" + (f": {known}" if known else ""))
