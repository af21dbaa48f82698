"""The session engine for the threads driver.

Whoever asks for something drives the connection itself, also who waits in the server's queue. What nobody
waits for at the moment, above all word that a session ended, is heard by one thread for all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ....engine_api import AdapterContext, Steps
from ....rules.requests import Reply, Request, Snapshot, Watch
from ....runtime import trampoline
from ....runtime.adaptive_spin import AdaptiveSpin
from ....runtime.clock import boottime
from ..commands import Commands
from ..failures import cannot_begin
from ..ground import Ground
from ..link import Link, LinkLost, ServerError
from ..pool import run, wait_for
from . import holding, requests
from .beginning import begin
from .calls import Calls
from .desk import Ask, Close, Desk, Ended, Finish, Glance, Open, Rest, Script, Session, Start, Task
from .hearing import Listener
from .overhearing import Overhearing

__all__ = ["AdvisoryThreads"]

T = TypeVar("T")

LOOKING_LINKS = 2


class Line:
    """A connection, and who may use it: taken by ``with`` alone, which no interrupt comes in between of."""

    __slots__ = ("is_heard", "link", "looks", "mutex")

    def __init__(self, link: Link) -> None:
        self.link = link
        self.mutex = threading.RLock()
        self.is_heard = False
        """By the one who waits there: nobody else need listen."""
        self.looks = AdaptiveSpin()
        """How it went to look for grants: those who often have to wait do not look for long."""


class AdvisoryThreads:
    """One client's view of the server's locks."""

    def __init__(self, ground: Ground, hooks: AdapterContext) -> None:
        self._ground = ground
        self._client = hooks.client
        self._io_timeout = hooks.io_timeout
        calls = Calls(ground.target.schema, ground.namespace)
        self._desk = Desk(calls, hooks.post, self._hang_up, boottime, hooks.io_timeout)
        self._commands = Commands(ground, hooks.io_timeout, LOOKING_LINKS)
        self._listener = Listener(self._desk, self.look_up)
        self.notification_reader = Overhearing(self._listener.ring)
        self._perform: dict[type, Callable[[Any], Any]] = {
            Start: self._start,
            Finish: self._finish,
            Glance: self._glance,
            Ask: lambda op: self._commands.perform(op.call),
            Open: lambda op: self._open(),
            Rest: lambda op: time.sleep(op.seconds),
            Close: lambda op: self._hang_up(op.session),
        }

    @property
    def source(self) -> str:
        return self._ground.source

    # --- what the driver asks for

    def apply(self, name: str, request: Request) -> Reply:
        if request.__class__ is Watch:
            self._listener.ring()
        return trampoline.run(requests.apply(self._desk, name, request), self._do)

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return self._run(requests.apply_in_order(self._desk, steps, stop_when_refused))

    def renew_batch(self, steps: Steps) -> list[Reply]:
        return self._run(holding.renew_batch(self._desk, steps))

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return self._run(holding.list_names(self._desk, prefix))

    def listen(self, name: str | None) -> None:
        """Of any name: what is heard are the sessions."""
        self._listener.start()

    def unlisten(self, nonce: str, name: str | None) -> None:
        """A session is heard as long as somebody waits or holds there."""
        self._desk.watching.discard(nonce)

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Who dies loses its session, and the server its lock."""

    def close(self) -> None:
        self._listener.close()
        for session in list(self._desk.sessions):
            self._desk.lost(session, "the client was closed")
        self._commands.close()
        self.notification_reader.close()

    def forked(self) -> None:
        self._listener.forked()
        self.notification_reader.close()
        for session in self._desk.sessions:
            session.line.link.forked()
        self._commands.forked()

    # --- scripts

    def _run(self, script: Script[T]) -> T:
        return trampoline.run(script, self._do)

    def _do(self, op: Any) -> Any:
        return self._perform[op.__class__](op)

    # --- sessions

    def _open(self) -> Session:
        ends_at = boottime() + self._io_timeout
        link = self._commands.open_link(ends_at)
        try:
            backend = run(link, begin(link, self._client), ends_at)
        except (ServerError, LinkLost, TimeoutError) as error:
            link.close()
            raise cannot_begin(error, self._io_timeout) from error
        except BaseException:
            link.close()
            raise
        self._listener.ring()  # it finds the session, or the room for it
        return Session(Line(link), backend)

    def _hang_up(self, session: Session) -> None:
        session.line.link.close()

    def _start(self, op: Start) -> None:
        session, task, seconds = op
        line: Line = session.line
        ends_at = boottime() + seconds
        with line.mutex:
            before = session.current
            if before is not None and not before.done:
                self._drive(session, before, ends_at, None)
                if not before.done:
                    raise TimeoutError
            if session.dead or not line.link.is_quiet():
                raise Ended(session.why or line.link.last_words())
            task.waits = line.link.call(task.call)
            session.current = task
            self._step(session, task)

    def _finish(self, op: Finish) -> bool:
        session, task, seconds = op
        line: Line = session.line
        ends_at = boottime() + seconds
        session.see_unsent(task)
        while not task.done:
            with line.mutex:
                if not task.done:
                    self._drive(session, task, ends_at, None if task.nonce else line.link.looks)
            if not task.done and boottime() >= ends_at:
                break
        if not task.done and task.nonce:
            self._listener.ring()
        return task.done

    def _glance(self, op: Glance) -> bool:
        """Who waits does not sleep here: it is to hear of more than of its grant."""
        session, task, first = op
        line: Line = session.line
        session.see_unsent(task)
        if not task.done:
            with line.mutex:
                if not task.done:
                    if first:
                        self._drive(session, task, 0.0, line.looks)
                    else:
                        self._step(session, task)  # finds out by itself whether something has come
        if not task.done:
            self.notification_reader.expect(session, task)
        return task.done

    def _drive(self, session: Session, task: Task, ends_at: float, looks: AdaptiveSpin | None) -> None:
        """Until it is done, or the time is over. The mutex is ours."""
        link: Link = session.line.link
        try:
            while not task.done:
                if task.wants and not wait_for(link, task.wants, ends_at, looks):
                    return
                self._step(session, task)
        except LinkLost as lost:
            task.end(None, lost)

    def _step(self, session: Session, task: Task) -> None:
        link: Link = session.line.link
        try:
            try:
                task.wants = task.waits.send(None)
            except StopIteration as end:
                task.end(end.value, None)
            except (ServerError, LinkLost) as error:
                task.end(None, error)
        except BaseException:
            if not task.done:
                task.waits, task.wants = link.resume(), 0
            raise
        if task.done and (heard := link.heard()):
            self._told(heard)

    def look_up(self, session: Session) -> bool:
        """Something came on a session: see what. False: somebody else is at it."""
        line: Line = session.line
        if not line.mutex.acquire(blocking=False):
            return False
        try:
            task = session.current
            if task is not None and not task.done:
                self._drive(session, task, 0.0, None)
                if task.done and task.nonce:
                    self._desk.post(task.nonce)
            else:
                self._told(line.link.hear())
        except LinkLost as lost:
            self._desk.lost(session, str(lost))
        finally:
            line.mutex.release()
        return True

    def _told(self, nonces: list[str]) -> None:
        """Of what was broken."""
        for nonce in nonces:
            if nonce in self._desk.mine and nonce not in self._desk.told:
                self._desk.told.add(nonce)
                self._desk.post(nonce)
