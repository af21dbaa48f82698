"""The observer of ``holdfast watch``.

It subscribes to changes, so that it sends no requests while nothing changes. Two changes are not announced: a
new name, and a holder that vanished without a waiter. For these it polls the engine at intervals that cost
little.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import holdfast.aio
from holdfast import EngineUnavailable, LockInfo

from .exits import Status, complain
from .signals import STOPS_WAITING
from .watch_screens import screen_for

if TYPE_CHECKING:
    from holdfast.aio import AsyncClient

    from .watch_screens import Screen

__all__ = ["observe"]

POLL_SECONDS = 2.0
"""The interval between two polls for unannounced changes."""
POLL_SHARE_MAX = 0.05
"""The largest share of the time spent on polls: if a poll takes long, polls are rarer."""
FORGET_SECONDS = 30.0
"""A name that was found by its prefix and has been free for this long is not watched any more."""
MOST_SUBSCRIPTIONS = 100
"""Every subscription is refreshed in the engine every few seconds. Further names are only polled."""


async def observe(names: Sequence[str], prefix: str, url: str | None, namespace: str, json: bool) -> int:
    """Show changes until a signal comes. Returns the exit status for that signal."""
    async with holdfast.aio.connect(url, namespace=namespace) as client:
        if client.guarantees.scope == "process":
            complain(f"{client.url} keeps locks within one process: another process cannot watch them")
        observer = Observer(client, list(dict.fromkeys(names)), prefix)
        try:
            with screen_for(json) as screen:
                return await _show(observer, screen)
        finally:
            await observer.close()


async def _show(observer: Observer, screen: Screen) -> int:
    """Pass every change to the screen until a signal comes. Returns the exit status for that signal."""
    signums: list[int] = []

    def stop(signum: int) -> None:
        signums.append(signum)
        observer.changed.set()

    loop = asyncio.get_running_loop()
    for signum in STOPS_WAITING:
        # Signals that the caller ignores (nohup, a background job of a script) stay ignored.
        if signal.getsignal(signum) is not signal.SIG_IGN:
            loop.add_signal_handler(signum, stop, signum)
    await observer.start()
    while not signums:
        for change in observer.take():
            screen.tell(change)
        screen.draw(observer.known, observer.trouble)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(observer.changed.wait(), screen.tick_seconds)
        await asyncio.sleep(screen.pause_seconds)
    return Status.SIGNAL + signums[0]


class Seen:
    """A name as it was last seen."""

    def __init__(self, info: LockInfo, moment: float) -> None:
        self.info = info
        self.moment = moment
        self.free_since = moment
        self.times = 0
        """The number of changes seen, to detect that a change overtook a poll."""


class Observer:
    """The state of the watched names, kept up to date."""

    def __init__(self, client: AsyncClient, names: Sequence[str], prefix: str) -> None:
        self._client = client
        self._names = names
        self._prefix = prefix
        self._known: dict[str, Seen] = {}
        self._news: list[LockInfo] = []
        self._error: BaseException | None = None
        self.trouble = ""
        """Why the engine cannot be reached; empty: it can."""
        self._followers: dict[str, asyncio.Task[None]] = {}
        self._looker: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()
        """Set when there are changes to take."""

    async def start(self) -> None:
        """Read the current state and start to observe."""
        await self._look()
        self._looker = self._begin(self._keep_looking(), self._on_end)

    async def close(self) -> None:
        """Withdraw the subscriptions."""
        tasks = [*self._followers.values(), *([self._looker] if self._looker else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def take(self) -> list[LockInfo]:
        """The changes since the last call, in order. Raises the error that ended the observation."""
        self.changed.clear()
        if self._error is not None:
            raise self._error
        news, self._news = self._news, []
        return news

    @property
    def known(self) -> list[tuple[LockInfo, float]]:
        """The last known state of every watched name, and how many seconds ago it was read."""
        now = asyncio.get_running_loop().time()
        return [(seen.info, now - seen.moment) for seen in self._known.values()]

    def _begin(
        self, work: Coroutine[Any, Any, None], on_end: Callable[[asyncio.Task[None]], None]
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(on_end)
        return task

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._error = self._error or error
            self.changed.set()

    def _on_end_of(self, name: str, task: asyncio.Task[None]) -> None:
        """A name whose subscription ended because the engine went away is subscribed again after the next
        poll."""
        if not task.cancelled() and isinstance(task.exception(), EngineUnavailable):
            if self._followers.get(name) is task:
                del self._followers[name]
        else:
            self._on_end(task)

    def _report_trouble(self, trouble: str) -> None:
        if self.trouble != trouble:
            self.trouble = trouble
            self.changed.set()

    async def _follow(self, name: str) -> None:
        async with self._client.watch(name) as changes:
            async for info in changes:
                self._note(info)

    async def _keep_looking(self) -> None:
        loop = asyncio.get_running_loop()
        took_seconds = 0.0
        while True:
            await asyncio.sleep(max(POLL_SECONDS, took_seconds / POLL_SHARE_MAX))
            began = loop.time()
            try:
                await self._look()
            except EngineUnavailable as error:
                self._report_trouble(str(error))
                took_seconds = 0.0  # Finding out took long. The next poll is not delayed for that.
            else:
                self._report_trouble("")
                took_seconds = loop.time() - began

    async def _look(self) -> None:
        """Poll for unannounced changes, and subscribe to every name that exists."""
        heard_before = {name: seen.times for name, seen in self._known.items()}
        if self._names:
            found = {name: await self._client.inspect(name) for name in self._names}
        else:
            found = {info.name: info for info in await self._client.list(self._prefix)}
        for name, times in heard_before.items():
            if self._known[name].times != times:
                found.pop(name, None)  # A change that a subscription reported meanwhile is newer.
            elif name not in found:
                found[name] = _freed(self._known[name].info)
        for info in found.values():
            self._note(info)
        self._forget()
        for name in found:
            if name in self._known and name not in self._followers:
                if len(self._followers) >= MOST_SUBSCRIPTIONS:
                    break
                self._followers[name] = self._begin(self._follow(name), partial(self._on_end_of, name))

    def _note(self, info: LockInfo) -> None:
        now = asyncio.get_running_loop().time()
        before = self._known.get(info.name)
        after = self._known[info.name] = Seen(info, now)
        if before is not None:
            after.times = before.times + 1
            if not _in_use(info) and not _in_use(before.info):
                after.free_since = before.free_since
        if before is None or _news_of(before.info) != _news_of(info):
            self._news.append(info)
            self.changed.set()

    def _forget(self) -> None:
        """Unsubscribe from free names. Names that the user gave stay."""
        if self._names:
            return
        now = asyncio.get_running_loop().time()
        for name, seen in list(self._known.items()):
            if not _in_use(seen.info) and now - seen.free_since > FORGET_SECONDS:
                del self._known[name]
                follower = self._followers.pop(name, None)
                if follower is not None:
                    follower.cancel()


def _in_use(info: LockInfo) -> bool:
    return bool(info.holders or info.waiters or info.value is not None)


def _freed(info: LockInfo) -> LockInfo:
    return dataclasses.replace(info, holders=(), waiters=(), value=None)


def _news_of(info: LockInfo) -> tuple[object, ...]:
    """The state that counts as a change if it differs: not ages, and not renewals."""
    return (
        info.kind,
        info.limit,
        info.value,
        [(holder.client, holder.owner, holder.mode, holder.token) for holder in info.holders],
        [(waiter.client, waiter.owner, waiter.mode) for waiter in info.waiters],
    )
