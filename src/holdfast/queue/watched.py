"""Connections of the queue's own that notice when nobody is there to answer any more.

A network that loses everything, or a server that stands still, ends no connection: whoever waits for an
answer waits for ever. How long a statement may take is not known either: it may wait for a lock, or count
millions of jobs. So where no answer comes, another connection is asked whether the server is there. If it is,
the wait goes on; if not, it ends with an error of psycopg's, and so does the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen

__all__ = ["WatchedAsyncConnection", "WatchedConnection"]

T = TypeVar("T")

LEAST_SECONDS: Final = 2
"""psycopg gives a connection attempt so long at least."""


class _Silence(psycopg.OperationalError):
    pass


def _watched(gen: PQGen[T], seconds: float, is_silent: Callable[[], bool | None]) -> PQGen[T]:
    """The same exchange with the server. Each time nothing was heard for so long, it is asked whether that is
    for ever; None: it is not known yet."""
    answer: Any = None
    heard_at: float | None = None
    while True:
        try:
            wanted = gen.send(answer)
        except StopIteration as end:
            done: T = end.value
            return done
        # While a wait lasts, psycopg resumes it every 0.1 s with nothing (from psycopg 3.2 on).
        answer = yield wanted
        now = time.monotonic()
        if answer or heard_at is None:
            heard_at = now
        elif now - heard_at >= seconds:
            silent = is_silent()
            if silent:
                raise _Silence(f"no answer within {seconds:g} seconds, and then no other sign of a server")
            if silent is not None:
                heard_at = time.monotonic()


def _always() -> bool:
    return True


class WatchedConnection(psycopg.Connection[Any]):
    """Blocking."""

    watch_seconds = float("inf")
    watch_settings: dict[str, Any]

    def watch(self, seconds: float, settings: dict[str, Any]) -> None:
        """Ask elsewhere when nothing was heard for so long; ``settings`` are those of this connection."""
        self.watch_seconds, self.watch_settings = seconds, settings

    def wait(self, gen: PQGen[T], *arguments: Any, **options: Any) -> T:
        try:
            return super().wait(
                _watched(gen, self.watch_seconds, self._is_server_silent), *arguments, **options
            )
        except _Silence:
            self.pgconn.finish()
            raise

    def _is_server_silent(self) -> bool:
        try:
            with _Asking.connect(**_asking(self.watch_settings, self.watch_seconds)) as other:
                other.seconds = self.watch_seconds
                other.execute("SELECT 1")
        except (_Silence, psycopg.errors.ConnectionTimeout):
            return True
        except psycopg.Error:
            return False  # it refuses this connection, so it is there
        return False


class _Asking(psycopg.Connection[Any]):
    seconds = float("inf")

    def wait(self, gen: PQGen[T], *arguments: Any, **options: Any) -> T:
        try:
            return super().wait(_watched(gen, self.seconds, _always), *arguments, **options)
        except _Silence:
            self.pgconn.finish()
            raise


def _asking(settings: dict[str, Any], seconds: float) -> dict[str, Any]:
    return {**settings, "connect_timeout": max(LEAST_SECONDS, round(seconds))}


class WatchedAsyncConnection(psycopg.AsyncConnection[Any]):
    """Awaited."""

    watch_seconds = float("inf")
    watch_settings: dict[str, Any]

    def watch(self, seconds: float, settings: dict[str, Any]) -> None:
        """As ``WatchedConnection.watch``."""
        self.watch_seconds, self.watch_settings = seconds, settings

    async def wait(self, gen: PQGen[T], *arguments: Any, **options: Any) -> T:
        asked: list[asyncio.Task[bool]] = []

        def is_silent() -> bool | None:
            if not asked:
                asked.append(asyncio.create_task(self._is_server_silent()))
            if not asked[0].done():
                return None
            return asked.pop().result()

        try:
            return await super().wait(_watched(gen, self.watch_seconds, is_silent), *arguments, **options)
        except _Silence:
            self.pgconn.finish()
            raise
        finally:
            for task in asked:
                task.cancel()

    async def _is_server_silent(self) -> bool:
        try:
            settings = _asking(self.watch_settings, self.watch_seconds)
            async with await _AsyncAsking.connect(**settings) as other:
                other.seconds = self.watch_seconds
                await other.execute("SELECT 1")
        except (_Silence, psycopg.errors.ConnectionTimeout):
            return True
        except psycopg.Error:
            return False
        return False


class _AsyncAsking(psycopg.AsyncConnection[Any]):
    seconds = float("inf")

    async def wait(self, gen: PQGen[T], *arguments: Any, **options: Any) -> T:
        try:
            return await super().wait(_watched(gen, self.seconds, _always), *arguments, **options)
        except _Silence:
            self.pgconn.finish()
            raise
