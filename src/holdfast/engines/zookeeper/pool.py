"""The session of a client: opened when needed, registered so that others can leave word, asked through.

No I/O here: a transport performs what is sent.
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
from .codec import EPHEMERAL, CheckVersion, Create, CreateContainer, Exists, GetData, Multi, writes
from .config import Config
from .errors import ABOUT_NODES, classify_error
from .keys import Paths
from .notifications import WatchRegistry
from .rpc import AwaitConnected, RequestTimeoutError, SendRequests
from .session import Answer, Session
from .ticket_cache import TicketCache

__all__ = ["SessionPool", "append_notice"]

log = logging.getLogger("holdfast")

ENDED_AT_ONCE: Final = "the session ended as soon as it had begun"

NOTICES_KEPT: Final = 50
"""So many of the last words from others stay in a session's node."""


class SessionPool:
    """The links of one client, the present one first."""

    def __init__(self, config: Config, paths: Paths, context: AdapterContext, client: TicketClient) -> None:
        self.config = config
        self.paths = paths
        self.timeout = context.io_timeout
        self.acl = CREATOR_ALL_ACL if config.auth else OPEN_ACL_UNSAFE
        self.notifications = WatchRegistry(client, context.post)
        self.cache = TicketCache()
        self.origin = ""
        """What tells this ensemble from every other: when, by its own order, our prefix was made in it."""
        self._client = client
        self._post = context.post
        self._open_sessions: list[Session] = []
        self._choosing = threading.Lock()

    # --- which one

    def session(self, generation: int = 0) -> Session:
        """The present session, or the next; 0: of whichever generation."""
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
        """A session apart from that of the client."""
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
        """The present session, connected and registered."""
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
        """A node that says that the session is there. In it others leave word; so it is watched."""
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
                raise NotApplied("somebody takes away the nodes that are made")
            self.origin = f"{prefix.czxid:x}.{prefix.ctime:x}"
            session.registered = True
            return

    async def make_base(self, session: Session) -> None:
        """The nodes above all others. Those of the prefix stay; they may be there, and not ours."""
        parts = self.paths.prefix.split("/")
        prefixes = ["/".join(parts[:count]) for count in range(2, len(parts) + 1)]
        there = await self.send(session, [Exists(path, None) for path in prefixes])
        missing = [path for path, stat in zip(prefixes, there, strict=True) if stat is None]
        below = (self.paths.base, self.paths.names, self.paths.sessions)
        requests = [Create(path, b"", self.acl, 0) for path in missing]
        await self.send(session, requests + [self.container(path) for path in below])

    def container(self, path: str) -> Any:
        """What makes a node that the server takes away when it has been empty for a while."""
        return CreateContainer(path, b"", self.acl)

    def check_session(self, session: Session) -> Any:
        """Goes with whatever leans on the session: kazoo might have begun another by itself."""
        return CheckVersion(self.paths.session(session.session_id), -1)

    def sync_write(self, session: Session) -> Any:
        """Sent before a look, it makes sure that everything is seen that this session has done: one that has
        just come to another server, which is behind, might see less. And it is a sign of life."""
        return Multi((self.check_session(session),))

    def ended_error(self, session: Session) -> SessionEndedError:
        """Its node is gone, whoever took it away: without it nobody can reach its client."""
        self.session_ended(session)
        return SessionEndedError()

    # --- asking through it

    async def send(
        self, session: Session, requests: Sequence[Any], patience: float | None = None
    ) -> list[Any]:
        """Back to back; returns the answers. What is answered about nodes is an answer too: an exception."""
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
            told = "ZooKeeper did not answer in time"
            raise OutcomeUnknown(told) if wrote else NotApplied(told) from None
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

    # --- what is heard, in kazoo's thread

    def session_connected(self, session: Session) -> None:
        """Connected, perhaps once more."""
        if session.registered:
            now = boottime()
            self._client.session_confirmed(session, now, session.clock.age(now))
            self.read_notices(session)
            self.notifications.connection_changed()

    def session_ended(self, session: Session) -> None:
        """The session is gone, and everything that it carried."""
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
        """For kazoo: what to call when something happens to a node."""
        return self._watch_fired

    def _watch_fired(self, event: Any) -> None:
        try:
            if event.type == EventType.NONE:
                return  # about the connection: told elsewhere
            session = self._open_sessions[0] if self._open_sessions else None
            if session is not None and event.path == self.paths.session(session.session_id):
                self.read_notices(session)
            else:
                self.notifications.node_changed(event.path)
        except Exception:
            log.exception("holdfast: a watch of ZooKeeper was not understood")

    def read_notices(self, session: Session) -> None:
        """Without waiting: what others have to say is passed on when it arrives."""
        session.send(
            [GetData(self.paths.session(session.session_id), self._watch_fired)],
            lambda a: self._receive_notices(session, a),
        )

    def _receive_notices(self, session: Session, answers: list[Answer]) -> None:
        if answers[0].error is not None:
            return  # there will be another connection, and then it is read
        try:
            for ended in decode_notices(answers[0].value[0]):
                if ended.nonce not in session.notices:
                    session.notices[ended.nonce] = ended
                    self._client.suspect(ended.nonce)
                    self._post(ended.nonce)
        except Exception:
            log.exception("holdfast: what others left word of in ZooKeeper was not understood")

    async def note(self, session: Session, nonce: str) -> Tombstone | None:
        """What others did to an attempt of this session, if they did."""
        if nonce not in session.notices and not session.is_ended and session.registered:
            (read,) = await self.send(session, [GetData(self.paths.session(session.session_id), None)])
            if not isinstance(read, NoNodeError):
                return next((ended for ended in decode_notices(read[0]) if ended.nonce == nonce), None)
        return session.notices.get(nonce)


def _ignore() -> None:
    """Nobody waits for it."""


def decode_notices(data: bytes | None) -> list[Tombstone]:
    return [decode_note(line) for line in (data or b"").splitlines()]


def append_notice(data: bytes | None, ended: Tombstone) -> bytes:
    lines = [*(data or b"").splitlines(), encode_note(ended)]
    return b"\n".join(lines[-NOTICES_KEPT:])
