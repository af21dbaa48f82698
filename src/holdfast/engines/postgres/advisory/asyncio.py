"""The session engine for the asyncio driver; a file apart, so that threads never import asyncio.

The loop drives every conversation and hears every session: a task that is cancelled leaves its statement to
its end, and the connection whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from ....engine_api import AdapterContext, Steps
from ....rules.requests import Reply, Request, Snapshot, Watch
from ....runtime import trampoline
from ....runtime.clock import boottime
from ..failures import cannot_begin
from ..ground import Ground
from ..link import WRITABLE, Link, LinkLost, ServerError
from ..loop import LoopPool, run
from ..opening import Opener
from . import holding, requests
from .beginning import begin
from .calls import Calls
from .desk import Ask, Close, Desk, Ended, Finish, Glance, Op, Open, Rest, Script, Session, Start, Task

__all__ = ["AdvisoryAsyncio"]

T = TypeVar("T")

LOOKING_LINKS = 2
AT_ONCE_SECONDS = 0.001
"""A wait that ends so soon is waited out where it began: nobody has to be woken for it."""

TICK_SECONDS = 0.25
"""How often those look who watch a name."""


class Line:
    """A connection that the loop hears all the time."""

    __slots__ = ("_fileno", "_hears", "_loop", "_ready", "_writes", "began", "link", "turn")

    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self.link = link
        self._loop = loop
        self._fileno = link.fileno
        """Kept: when the connection is lost libpq closes the socket and forgets its number."""
        self._hears = self._writes = False
        self.turn = asyncio.Lock()
        """Of the first of those who want to say something there: first come, first served."""
        self.began = 0.0
        """When the last statement was sent, by the local clock."""

    def hear(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        self._hears = True
        self._loop.add_reader(self._fileno, ready)

    def write(self, wanted: bool) -> None:
        """Whether it is to be told when there is room to write."""
        if wanted != self._writes and self._hears:
            self._writes = wanted
            if wanted:
                self._loop.add_writer(self._fileno, self._ready)
            else:
                self._loop.remove_writer(self._fileno)

    def close(self) -> None:
        self.write(False)
        if self._hears:
            self._hears = False
            self._loop.remove_reader(self._fileno)
        self.link.close()


class AdvisoryAsyncio:
    """One client's view of the server's locks."""

    def __init__(self, ground: Ground, hooks: AdapterContext) -> None:
        self._ground = ground
        self._client = hooks.client
        self._io_timeout = hooks.io_timeout
        calls = Calls(ground.target.schema, ground.namespace)
        self._desk = Desk(calls, hooks.post, _hang_up, boottime, hooks.io_timeout)
        self._opener = Opener(ground, hooks.io_timeout)
        self._commands = LoopPool(self._opener.open_link, LOOKING_LINKS, hooks.io_timeout)
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def source(self) -> str:
        return self._ground.source

    # --- what the driver asks for

    async def apply(self, name: str, request: Request) -> Reply:
        if isinstance(request, Watch) and self._ticker is None:
            self._tick()
        return await self._run(requests.apply(self._desk, name, request))

    async def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return await self._run(requests.apply_in_order(self._desk, steps, stop_when_refused))

    async def renew_batch(self, steps: Steps) -> list[Reply]:
        return await self._run(holding.renew_batch(self._desk, steps))

    async def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return await self._run(holding.list_names(self._desk, prefix))

    async def listen(self, name: str | None) -> None:
        """The loop hears all sessions anyway."""

    def unlisten(self, nonce: str, name: str | None) -> None:
        """The loop hears all sessions anyway."""
        self._desk.watching.discard(nonce)

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Who dies loses its session, and the server its lock."""

    async def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        for session in list(self._desk.sessions):
            self._desk.lost(session, "the client was closed")
        self._commands.close()

    def forked(self) -> None:
        for session in self._desk.sessions:
            session.line.link.forked()
        self._commands.forked()

    # --- scripts

    async def _run(self, script: Script[T]) -> T:
        return await trampoline.run_in_loop(script, self._perform)

    async def _perform(self, op: Op) -> Any:
        match op:
            case Start(session, task, seconds):
                return await self._start(session, task, seconds)
            case Finish(session, task, seconds):
                session.see_unsent(task)
                return task.done or await self._end(task, seconds)
            case Glance(session, task, first):
                session.see_unsent(task)
                return task.done or (first and await self._end(task, AT_ONCE_SECONDS))
            case Ask(call):
                return await self._commands.perform(call)
            case Open():
                return await self._open()
            case Rest(seconds):
                return await asyncio.sleep(seconds)
            case Close(session):
                return _hang_up(session)
        raise AssertionError(op)

    # --- sessions

    async def _open(self) -> Session:
        ends_at = boottime() + self._io_timeout
        link = await self._opener.open_link(ends_at)
        try:
            backend = await run(link, begin(link, self._client), ends_at)
            line = Line(link, asyncio.get_running_loop())
        except (ServerError, LinkLost, TimeoutError) as error:
            link.close()
            raise cannot_begin(error, self._io_timeout) from error
        except BaseException:
            link.close()
            raise
        session = Session(line, backend)
        line.hear(lambda: self._ready(session))
        return session

    async def _start(self, session: Session, task: Task, seconds: float) -> None:
        """Whoever just finished waits behind those who wait already: it would be first again and again."""
        line: Line = session.line
        if not session.is_busy and not line.turn.locked():
            self._begin(session, task)
            return
        came = boottime()
        async with line.turn:
            while (before := session.current) is not None and not before.done:
                # A server that answers one after the other is not silent, however many wait.
                if not await self._end(before, max(came, line.began) + seconds - boottime()):
                    raise TimeoutError
            self._begin(session, task)

    def _begin(self, session: Session, task: Task) -> None:
        line: Line = session.line
        if session.dead or not line.link.is_quiet():
            raise Ended(session.why or line.link.last_words())
        session.current = task
        line.began = boottime()
        task.waits = line.link.call(task.call)
        self._go_on(session, task)

    async def _end(self, task: Task, seconds: float) -> bool:
        """Wait for the end of a task; False: it did not come in time."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(max(seconds, 0.0), _tell, future)
        task.onlookers.append(future)
        try:
            await future
        finally:
            timer.cancel()
            task.onlookers.remove(future)
        return task.done

    def _ready(self, session: Session) -> None:
        """Something came, or there is room to write."""
        task = session.current
        if task is not None and not task.done:
            self._go_on(session, task)
            return
        try:
            self._told(session.line.link.hear())
        except LinkLost as lost:
            self._desk.lost(session, str(lost))

    def _go_on(self, session: Session, task: Task) -> None:
        line: Line = session.line
        try:
            want = task.waits.send(None)
        except StopIteration as end:
            task.end(end.value, None)
        except (ServerError, LinkLost) as error:
            task.end(None, error)
        else:
            line.write(bool(want & WRITABLE))
            return
        line.write(False)
        self._told(line.link.heard())
        if isinstance(task.error, LinkLost):
            self._desk.lost(session, str(task.error))
        if task.nonce and not task.onlookers:
            self._desk.post(task.nonce)
        for future in task.onlookers:
            _tell(future)

    def _told(self, nonces: list[str]) -> None:
        """Of what was broken."""
        for nonce in nonces:
            if nonce in self._desk.mine and nonce not in self._desk.told:
                self._desk.told.add(nonce)
                self._desk.post(nonce)

    def _tick(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
        for nonce in list(self._desk.watching):
            self._desk.post(nonce)


def _hang_up(session: Session) -> None:
    session.line.close()


def _tell(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
