"""Connections of the queue's own that notice when the server does not answer any more.

A network that loses all packets, or a server that is stopped, closes no connection, so a client would wait
for an answer for ever. A fixed time limit is no solution: a statement may wait for a lock, or count millions
of jobs. So when no answer comes for some time, the client opens a second connection and runs ``SELECT 1``. If
that succeeds, the wait goes on. If the second connection gets no answer either, the statement fails with an
error of psycopg, and the connection is closed.
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
"""The least ``connect_timeout`` of psycopg."""


class _Silence(psycopg.OperationalError):
    pass


def _watched(gen: PQGen[T], seconds: float, is_silent: Callable[[], bool | None]) -> PQGen[T]:
    """Pass on what ``gen`` exchanges with the server. After each such time without an answer, call
    ``is_silent``: True ends the exchange, None means that the result is not known yet."""
    answer: Any = None
    heard_at: float | None = None
    while True:
        try:
            wanted = gen.send(answer)
        except StopIteration as end:
            done: T = end.value
            return done
        # During a wait, psycopg resumes the generator with 0 every 0.1 s (since psycopg 3.2.4).
        answer = yield wanted
        now = time.monotonic()
        if answer or heard_at is None:
            heard_at = now
        elif now - heard_at >= seconds:
            silent = is_silent()
            if silent:
                raise _Silence(f"no answer within {seconds:g} seconds, nor on a second connection")
            if silent is not None:
                heard_at = time.monotonic()


def _always() -> bool:
    return True


class WatchedConnection(psycopg.Connection[Any]):
    """Blocking."""

    watch_seconds = float("inf")
    watch_settings: dict[str, Any]

    def watch(self, seconds: float, settings: dict[str, Any]) -> None:
        """Check the server after so many seconds without an answer; ``settings`` are for ``connect``."""
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
            return False  # the server refuses this connection, so it is there
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
