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

    def __init__(self, options: Config, paths: Paths, hooks: AdapterContext, client: TicketClient) -> None:
        self.options = options
        self.paths = paths
        self.timeout = hooks.io_timeout
        self.acl = CREATOR_ALL_ACL if options.auth else OPEN_ACL_UNSAFE
        self.notifications = WatchRegistry(client, hooks.post)
        self.cache = TicketCache()
        self.origin = ""
        """What tells this ensemble from every other: when, by its own order, our prefix was made in it."""
        self._client = client
        self._post = hooks.post
        self._open_sessions: list[Session] = []
        self._choosing = threading.Lock()

    # --- which one

    def link(self, generation: int = 0) -> Session:
        """The present session, or the next; 0: of whichever generation."""
        with self._choosing:
            link = self._open_sessions[0] if self._open_sessions else None
            if link is not None and generation and link.generation not in (0, generation):
                link.end(_nobody)
            if link is None or link.dead:
                self.options.check_files()
                link = Session(self.options, self.options.session_timeout, self.timeout, self)
                self._open_sessions.insert(0, link)
                link.start()
            link.generation = link.generation or generation
            return link

    def another(self, seconds: float) -> Session:
        """A session apart from that of the client."""
        link = Session(self.options, seconds, self.timeout, self)
        with self._choosing:
            self._open_sessions.append(link)
        link.start()
        return link

    def done_with(self, link: Session) -> None:
        with self._choosing:
            if link in self._open_sessions:
                self._open_sessions.remove(link)

    def all(self) -> list[Session]:
        return list(self._open_sessions)

    async def opened(self, generation: int = 0) -> Session:
        """The present session, connected and registered."""
        link = self.link(generation)
        if not link.registered:
            await self.connected(link)
            try:
                await self._register(link)
            except SessionEndedError:
                raise NotApplied(ENDED_AT_ONCE) from None
        return link

    async def connected(self, link: Session) -> None:
        await AwaitConnected(link, connect_seconds(self.timeout))
        try:
            link.check()
        except SessionEndedError:
            raise NotApplied(ENDED_AT_ONCE) from None

    async def _register(self, link: Session) -> None:
        """A node that says that the session is there. In it others leave word; so it is watched."""
        node = self.paths.session(link.session_id)
        while True:
            _, made, read, prefix = await self.send(
                link,
                [
                    self.container(self.paths.sessions),
                    Create(node, b"", self.acl, EPHEMERAL),
                    GetData(node, self._happened),
                    Exists(self.paths.prefix, None),
                ],
            )
            if isinstance(made, NoNodeError):
                await self.make_base(link)
                continue
            if isinstance(read, Exception) or prefix is None:
                raise NotApplied("somebody takes away the nodes that are made")
            self.origin = f"{prefix.czxid:x}.{prefix.ctime:x}"
            link.registered = True
            return

    async def make_base(self, link: Session) -> None:
        """The nodes above all others. Those of the prefix stay; they may be there, and not ours."""
        parts = self.paths.prefix.split("/")
        prefixes = ["/".join(parts[:count]) for count in range(2, len(parts) + 1)]
        there = await self.send(link, [Exists(path, None) for path in prefixes])
        missing = [path for path, stat in zip(prefixes, there, strict=True) if stat is None]
        below = (self.paths.base, self.paths.names, self.paths.sessions)
        requests = [Create(path, b"", self.acl, 0) for path in missing]
        await self.send(link, requests + [self.container(path) for path in below])

    def container(self, path: str) -> Any:
        """What makes a node that the server takes away when it has been empty for a while."""
        return CreateContainer(path, b"", self.acl)

    def check_session(self, link: Session) -> Any:
        """Goes with whatever leans on the session: kazoo might have begun another by itself."""
        return CheckVersion(self.paths.session(link.session_id), -1)

    def sync_write(self, link: Session) -> Any:
        """Sent before a look, it makes sure that everything is seen that this session has done: one that has
        just come to another server, which is behind, might see less. And it is a sign of life."""
        return Multi((self.check_session(link),))

    def no_session(self, link: Session) -> SessionEndedError:
        """Its node is gone, whoever took it away: without it nobody can reach its client."""
        self.session_ended(link)
        return SessionEndedError()

    # --- asking through it

    async def send(self, link: Session, requests: Sequence[Any], patience: float | None = None) -> list[Any]:
        """Back to back; returns the answers. What is answered about nodes is an answer too: an exception."""
        link.check()
        if not requests:
            return []
        sent = boottime()
        link.clock.sent(sent)
        wrote = any(map(writes, requests))
        timeout, urgent = (self.timeout, False) if patience is None else (patience, True)
        try:
            answers = await SendRequests(link, list(requests), timeout, urgent)
        except RequestTimeoutError:
            link.reconnect()
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
            link.clock.wrote(sent)
            self._client.heard(link, sent, link.clock.age(sent))
        return results

    # --- what is heard, in kazoo's thread

    def session_connected(self, link: Session) -> None:
        """Connected, perhaps once more."""
        if link.registered:
            now = boottime()
            self._client.heard(link, now, link.clock.age(now))
            self.read_notices(link)
            self.notifications.connection_changed()

    def session_ended(self, link: Session) -> None:
        """The session is gone, and everything that it carried."""
        link.end(_nobody)
        self.done_with(link)
        self.cache.forget_session(link)
        for nonce in self._client.over(link):
            self._post(nonce)
        self.notifications.connection_changed()

    def is_used(self, link: Session) -> bool:
        return self.cache.of(link)

    @property
    def watcher(self) -> Any:
        """For kazoo: what to call when something happens to a node."""
        return self._happened

    def _happened(self, event: Any) -> None:
        try:
            if event.type == EventType.NONE:
                return  # about the connection: told elsewhere
            link = self._open_sessions[0] if self._open_sessions else None
            if link is not None and event.path == self.paths.session(link.session_id):
                self.read_notices(link)
            else:
                self.notifications.node_changed(event.path)
        except Exception:
            log.exception("holdfast: a watch of ZooKeeper was not understood")

    def read_notices(self, link: Session) -> None:
        """Without waiting: what others have to say is passed on when it arrives."""
        link.send(
            [GetData(self.paths.session(link.session_id), self._happened)],
            lambda a: self._receive_notices(link, a),
        )

    def _receive_notices(self, link: Session, answers: list[Answer]) -> None:
        if answers[0].error is not None:
            return  # there will be another connection, and then it is read
        try:
            for ended in decode_notices(answers[0].value[0]):
                if ended.nonce not in link.notices:
                    link.notices[ended.nonce] = ended
                    self._client.suspect(ended.nonce)
                    self._post(ended.nonce)
        except Exception:
            log.exception("holdfast: what others left word of in ZooKeeper was not understood")

    async def note(self, link: Session, nonce: str) -> Tombstone | None:
        """What others did to an attempt of this session, if they did."""
        if nonce not in link.notices and not link.dead and link.registered:
            (read,) = await self.send(link, [GetData(self.paths.session(link.session_id), None)])
            if not isinstance(read, NoNodeError):
                return next((ended for ended in decode_notices(read[0]) if ended.nonce == nonce), None)
        return link.notices.get(nonce)


def _nobody() -> None:
    """Nobody waits for it."""


def decode_notices(data: bytes | None) -> list[Tombstone]:
    return [decode_note(line) for line in (data or b"").splitlines()]


def append_notice(data: bytes | None, ended: Tombstone) -> bytes:
    lines = [*(data or b"").splitlines(), encode_note(ended)]
    return b"\n".join(lines[-NOTICES_KEPT:])
