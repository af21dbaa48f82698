"""The sessions of one client: opened when needed, and registered so that other clients can leave notices.

No I/O here: ``threads`` and ``asyncio`` perform what is awaited.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, Final

from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from ...core.effects import NotApplied, OutcomeUnknown
from ...engine_api import AdapterContext
from ...protocols.tickets import TicketClient
from ...protocols.tickets.codec import decode_note, encode_note
from ...protocols.tickets.store import SessionEndedError
from ...rules.record import Tombstone
from ...runtime.clock import boottime
from ...runtime.connect_timeout import connect_seconds
from .cache import TicketCache
from .codec import EPHEMERAL, CheckVersion, Create, CreateContainer, Exists, GetData, Multi, writes
from .config import Config
from .effects import AwaitConnected, RequestTimeoutError, SendRequests
from .errors import ABOUT_NODES, classify_error
from .keys import Paths
from .notifications import WatchRegistry
from .session import Answer, Session

__all__ = ["SessionPool", "append_notice"]

log = logging.getLogger("holdfast")

ENDED_AT_ONCE: Final = "the session ended as soon as it was opened"

NOTICES_KEPT: Final = 50
"""A session's node keeps this many of the latest notices."""


class SessionPool:
    """The sessions of one client, the current one first."""

    def __init__(self, config: Config, paths: Paths, context: AdapterContext, client: TicketClient) -> None:
        self.config = config
        self.paths = paths
        self.timeout = context.io_timeout
        self.acl = CREATOR_ALL_ACL if config.auth else OPEN_ACL_UNSAFE
        self.notifications = WatchRegistry(client, context.post)
        self.cache = TicketCache()
        self.origin = ""
        """Identifies the ensemble: the zxid and time at which the prefix was created in it."""
        self._client = client
        self._post = context.post
        self._open_sessions: list[Session] = []
        self._choosing = threading.Lock()

    # --- choosing a session

    def session(self, generation: int = 0) -> Session:
        """The current session, or the next; 0: of any generation."""
        with self._choosing:
            session = self._open_sessions[0] if self._open_sessions else None
            if session is not None and generation and session.generation not in (0, generation):
                session.end(_ignore)
            if session is None or session.is_ended:
                self.config.check_files()
                session = Session(self.config, self.config.session_timeout, self.timeout, self)
                self._open_sessions.insert(0, session)
                session.start()
            session.generation = session.generation or generation
            return session

    def extra_session(self, seconds: float) -> Session:
        """A session beside that of the client."""
        session = Session(self.config, seconds, self.timeout, self)
        with self._choosing:
            self._open_sessions.append(session)
        session.start()
        return session

    def discard(self, session: Session) -> None:
        with self._choosing:
            if session in self._open_sessions:
                self._open_sessions.remove(session)

    def all(self) -> list[Session]:
        return list(self._open_sessions)

    async def registered_session(self, generation: int = 0) -> Session:
        """The current session, connected and registered."""
        session = self.session(generation)
        if not session.registered:
            await self.connected(session)
            try:
                await self._register(session)
            except SessionEndedError:
                raise NotApplied(ENDED_AT_ONCE) from None
        return session

    async def connected(self, session: Session) -> None:
        await AwaitConnected(session, connect_seconds(self.timeout))
        try:
            session.check()
        except SessionEndedError:
            raise NotApplied(ENDED_AT_ONCE) from None

    async def _register(self, session: Session) -> None:
        """Create the node that shows that the session lives. Other clients leave notices in it, so it is
        watched."""
        node = self.paths.session(session.session_id)
        while True:
            _, made, read, prefix = await self.send(
                session,
                [
                    self.container(self.paths.sessions),
                    Create(node, b"", self.acl, EPHEMERAL),
                    GetData(node, self._watch_fired),
                    Exists(self.paths.prefix, None),
                ],
            )
            if isinstance(made, NoNodeError):
                await self.make_base(session)
                continue
            if isinstance(read, Exception) or prefix is None:
                raise NotApplied("another client deletes the nodes as soon as they are created")
            self.origin = f"{prefix.czxid:x}.{prefix.ctime:x}"
            session.registered = True
            return

    async def make_base(self, session: Session) -> None:
        """Create the nodes above all others. Those of the prefix are permanent; they may exist already."""
        parts = self.paths.prefix.split("/")
        prefixes = ["/".join(parts[:count]) for count in range(2, len(parts) + 1)]
        there = await self.send(session, [Exists(path, None) for path in prefixes])
        missing = [path for path, stat in zip(prefixes, there, strict=True) if stat is None]
        below = (self.paths.base, self.paths.names, self.paths.sessions)
        requests = [Create(path, b"", self.acl, 0) for path in missing]
        await self.send(session, requests + [self.container(path) for path in below])

    def container(self, path: str) -> Any:
        """A request that creates a container, which the server deletes when it has been empty for a while."""
        return CreateContainer(path, b"", self.acl)

    def check_session(self, session: Session) -> Any:
        """Part of every multi that depends on the session: kazoo may have established another by itself."""
        return CheckVersion(self.paths.session(session.session_id), -1)

    def sync_write(self, session: Session) -> Any:
        """A write that changes nothing. Sent before a read, it makes sure that the read sees every earlier
        write of this session: after a reconnect to a server that lags behind it might see less. It is also a
        keep-alive."""
        return Multi((self.check_session(session),))

    def ended_error(self, session: Session) -> SessionEndedError:
        """The session's node is gone: without it no client can leave a notice, so the session is given up."""
        self.session_ended(session)
        return SessionEndedError()

    # --- requests

    async def send(
        self, session: Session, requests: Sequence[Any], patience: float | None = None
    ) -> list[Any]:
        """Send the requests in one batch; returns the answers. An error about a node is an answer, too: an
        exception in the list."""
        session.check()
        if not requests:
            return []
        sent = boottime()
        session.clock.sent(sent)
        wrote = any(map(writes, requests))
        timeout, urgent = (self.timeout, False) if patience is None else (patience, True)
        try:
            answers = await SendRequests(session, list(requests), timeout, urgent)
        except RequestTimeoutError:
            session.reconnect()
            message = "ZooKeeper did not answer in time"
            raise OutcomeUnknown(message) if wrote else NotApplied(message) from None
        results: list[Any] = []
        for answer in answers:
            error = answer.error
            if error is None:
                results.append(answer.value)
            elif isinstance(error, ABOUT_NODES):
                results.append(error)
            else:
                raise classify_error(error, wrote)
        if wrote:
            session.clock.wrote(sent)
            self._client.session_confirmed(session, sent, session.clock.age(sent))
        return results

    # --- called in kazoo's thread

    def session_connected(self, session: Session) -> None:
        """Connected, perhaps again."""
        if session.registered:
            now = boottime()
            self._client.session_confirmed(session, now, session.clock.age(now))
            self.read_notices(session)
            self.notifications.connection_changed()

    def session_ended(self, session: Session) -> None:
        """The session has ended, and its tickets are gone."""
        session.end(_ignore)
        self.discard(session)
        self.cache.forget_session(session)
        for nonce in self._client.session_reported_ended(session):
            self._post(nonce)
        self.notifications.connection_changed()

    def is_used(self, session: Session) -> bool:
        return self.cache.of(session)

    @property
    def watcher(self) -> Any:
        """The function that kazoo calls when a watch fires."""
        return self._watch_fired

    def _watch_fired(self, event: Any) -> None:
        try:
            if event.type == EventType.NONE:
                return  # about the connection: reported by its listener
            session = self._open_sessions[0] if self._open_sessions else None
            if session is not None and event.path == self.paths.session(session.session_id):
                self.read_notices(session)
            else:
                self.notifications.node_changed(event.path)
        except Exception:
            log.exception("holdfast: a watch of ZooKeeper was not understood")

    def read_notices(self, session: Session) -> None:
        """Read the notices of other clients without waiting; they are passed on when they arrive."""
        session.send(
            [GetData(self.paths.session(session.session_id), self._watch_fired)],
            lambda a: self._receive_notices(session, a),
        )

    def _receive_notices(self, session: Session, answers: list[Answer]) -> None:
        if answers[0].error is not None:
            return  # the next connection reads them
        try:
            for ended in decode_notices(answers[0].value[0]):
                if ended.nonce not in session.notices:
                    session.notices[ended.nonce] = ended
                    self._client.suspect(ended.nonce)
                    self._post(ended.nonce)
        except Exception:
            log.exception("holdfast: what others left word of in ZooKeeper was not understood")

    async def note(self, session: Session, nonce: str) -> Tombstone | None:
        """The notice of another client about an attempt of this session, if there is one."""
        if nonce not in session.notices and not session.is_ended and session.registered:
            (read,) = await self.send(session, [GetData(self.paths.session(session.session_id), None)])
            if not isinstance(read, NoNodeError):
                return next((ended for ended in decode_notices(read[0]) if ended.nonce == nonce), None)
        return session.notices.get(nonce)


def _ignore() -> None:
    """No caller waits for it."""


def decode_notices(data: bytes | None) -> list[Tombstone]:
    return [decode_note(line) for line in (data or b"").splitlines()]


def append_notice(data: bytes | None, ended: Tombstone) -> bytes:
    lines = [*(data or b"").splitlines(), encode_note(ended)]
    return b"\n".join(lines[-NOTICES_KEPT:])
