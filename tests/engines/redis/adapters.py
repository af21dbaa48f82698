"""One way to ask an adapter, whichever driver it is for, and to see what it receives."""

from __future__ import annotations

import asyncio
import inspect
import secrets
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, ParamSpec, Self, TypeVar

from holdfast.core.urls import parse_url
from holdfast.engine_api import AdapterContext
from holdfast.engines.redis import RedisEngine, open_engine
from holdfast.rules.requests import Acquire, Handoff, Inspect, Release
from support import wait_until

P = ParamSpec("P")
T = TypeVar("T")

Driver = Literal["threads", "asyncio"]

HAIR = 1e-5
"""Seconds: what is left of a moment when it is reckoned with."""


class Asker:
    """An adapter of a client of its own. ``ask(adapter.apply, …)`` blocks until it is answered."""

    def __init__(
        self,
        driver: Driver,
        url: str,
        *,
        namespace: str | None = None,
        io_timeout: float = 5.0,
        **options: Any,
    ) -> None:
        self.namespace = namespace or f"test-{secrets.token_hex(6)}"
        self.engine: RedisEngine = open_engine(parse_url(url), self.namespace, options)
        self.id = secrets.token_hex(8)
        self.posted: list[str] = []
        self.handed: dict[str, Handoff | None] = {}
        """What the last wake-up of a nonce brought along."""
        self.read_by: dict[str, str] = {}
        """By which thread."""
        self.told_to_look = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        hooks = AdapterContext(self.id, self._post, self._look, io_timeout)
        self.adapter: Any
        if driver == "threads":
            self.adapter = self.engine.threads(hooks)
        else:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="loop of the test")
            self._thread.start()
            self.adapter = self.ask(lambda: self.engine.asyncio(hooks))

    def _post(self, nonce: str, handed: Handoff | None = None) -> None:
        self.handed[nonce] = handed
        self.read_by[nonce] = threading.current_thread().name
        self.posted.append(nonce)

    def _look(self) -> None:
        self.told_to_look += 1

    def ask(self, question: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Any:
        """Called in the loop, if there is one, and awaited if need be."""
        if self._loop is None:
            return question(*args, **kwargs)

        async def asked() -> Any:
            answer = question(*args, **kwargs)
            return await answer if inspect.isawaitable(answer) else answer

        return asyncio.run_coroutine_threadsafe(asked(), self._loop).result(60)

    def apply(self, name: str, request: Any) -> Any:
        return self.ask(self.adapter.apply, name, request)

    def acquire(self, name: str = "x", nonce: str = "n1", *, wait: bool = False, ttl: float = 30.0) -> Any:
        return self.apply(name, Acquire(nonce, self.id, "host/1/me", "lock", "exclusive", ttl=ttl, wait=wait))

    def release(self, name: str = "x", nonce: str = "n1") -> Any:
        return self.apply(name, Release(nonce))

    def listen(self, name: str) -> None:
        """Returns when all that follows is done, too: with the first connection every waiter is asked to
        look."""
        self.ask(self.adapter.listen, name)
        self.until_told_to_look()

    def until_told_to_look(self, seen: int = 0) -> None:
        """It was notified more often than ``seen`` that wake-ups may have been missed."""
        wait_until(lambda: self.told_to_look > seen, timeout=30)

    def until_posted(self, nonce: str) -> None:
        wait_until(lambda: nonce in self.posted)

    def until_looked_after(self, name: str) -> None:
        """The client that holds it, and for long, listens: with that its keeper looks once at all it holds,
        and those who wait there look once more."""
        wait_until(lambda: self._is_renewed(name), timeout=30)

    def _is_renewed(self, name: str) -> bool:
        (held,) = self.apply(name, Inspect()).record.holders
        return bool(held.expires_at > held.since + held.ttl + HAIR)

    def close(self) -> None:
        self.ask(self.adapter.close)
        if self._loop is not None:
            self.ask(_end_all_tasks)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _end_all_tasks() -> None:
    """As ``asyncio.run`` does: a connection that was just being made anew is closed, not left behind."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
