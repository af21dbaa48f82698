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
from ...protocols.tickets.payload import decode_note, encode_note
from ...protocols.tickets.store import NoSession
from ...rules.record import Tombstone
from ...runtime.clock import boottime
from ...runtime.connect_timeout import connect_seconds
from .asking import Ready, Send, TimedOut
from .entries import Entries
from .failures import ABOUT_NODES, sorted_failure
from .link import Answer, Link
from .names import Paths
from .options import Options
from .watches import Watches
from .wire import EPHEMERAL, CheckVersion, Create, CreateContainer, Exists, GetData, Multi, writes

__all__ = ["Sessions", "letters_with"]

log = logging.getLogger("holdfast")

ENDED_AT_ONCE: Final = "the session ended as soon as it had begun"

LETTERS_KEPT: Final = 50
"""So many of the last words from others stay in a session's node."""


class Sessions:
    """The links of one client, the present one first."""

    def __init__(self, options: Options, paths: Paths, hooks: AdapterContext, desk: TicketClient) -> None:
        self.options = options
        self.paths = paths
        self.timeout = hooks.io_timeout
        self.acl = CREATOR_ALL_ACL if options.auth else OPEN_ACL_UNSAFE
        self.watches = Watches(desk, hooks.post)
        self.entries = Entries()
        self.origin = ""
        """What tells this ensemble from every other: when, by its own order, our prefix was made in it."""
        self._desk = desk
        self._post = hooks.post
        self._links: list[Link] = []
        self._choosing = threading.Lock()

    # --- which one

    def link(self, generation: int = 0) -> Link:
        """The present session, or the next; 0: of whichever generation."""
        with self._choosing:
            link = self._links[0] if self._links else None
            if link is not None and generation and link.generation not in (0, generation):
                link.end(_nobody)
            if link is None or link.dead:
                self.options.check_files()
                link = Link(self.options, self.options.session_timeout, self.timeout, self)
                self._links.insert(0, link)
                link.start()
            link.generation = link.generation or generation
            return link

    def another(self, seconds: float) -> Link:
        """A session apart from that of the client."""
        link = Link(self.options, seconds, self.timeout, self)
        with self._choosing:
            self._links.append(link)
        link.start()
        return link

    def done_with(self, link: Link) -> None:
        with self._choosing:
            if link in self._links:
                self._links.remove(link)

    def all(self) -> list[Link]:
        return list(self._links)

    async def opened(self, generation: int = 0) -> Link:
        """The present session, connected and registered."""
        link = self.link(generation)
        if not link.registered:
            await self.connected(link)
            try:
                await self._register(link)
            except NoSession:
                raise NotApplied(ENDED_AT_ONCE) from None
        return link

    async def connected(self, link: Link) -> None:
        await Ready(link, connect_seconds(self.timeout))
        try:
            link.check()
        except NoSession:
            raise NotApplied(ENDED_AT_ONCE) from None

    async def _register(self, link: Link) -> None:
        """A node that says that the session is there. In it others leave word; so it is watched."""
        node = self.paths.session(link.session)
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

    async def make_base(self, link: Link) -> None:
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

    def alive(self, link: Link) -> Any:
        """Goes with whatever leans on the session: kazoo might have begun another by itself."""
        return CheckVersion(self.paths.session(link.session), -1)

    def surely(self, link: Link) -> Any:
        """Sent before a look, it makes sure that everything is seen that this session has done: one that has
        just come to another server, which is behind, might see less. And it is a sign of life."""
        return Multi((self.alive(link),))

    def no_session(self, link: Link) -> NoSession:
        """Its node is gone, whoever took it away: without it nobody can reach its client."""
        self.link_over(link)
        return NoSession()

    # --- asking through it

    async def send(self, link: Link, requests: Sequence[Any], patience: float | None = None) -> list[Any]:
        """Back to back; returns the answers. What is answered about nodes is an answer too: an exception."""
        link.check()
        if not requests:
            return []
        sent = boottime()
        link.dating.sent(sent)
        wrote = any(map(writes, requests))
        timeout, urgent = (self.timeout, False) if patience is None else (patience, True)
        try:
            answers = await Send(link, list(requests), timeout, urgent)
        except TimedOut:
            link.doubt()
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
                raise sorted_failure(error, wrote)
        if wrote:
            link.dating.wrote(sent)
            self._desk.heard(link, sent, link.dating.age(sent))
        return results

    # --- what is heard, in kazoo's thread

    def link_up(self, link: Link) -> None:
        """Connected, perhaps once more."""
        if link.registered:
            now = boottime()
            self._desk.heard(link, now, link.dating.age(now))
            self.read_mail(link)
            self.watches.lost_sight()

    def link_over(self, link: Link) -> None:
        """The session is gone, and everything that it carried."""
        link.end(_nobody)
        self.done_with(link)
        self.entries.forget_link(link)
        for nonce in self._desk.over(link):
            self._post(nonce)
        self.watches.lost_sight()

    def is_used(self, link: Link) -> bool:
        return self.entries.of(link)

    @property
    def watcher(self) -> Any:
        """For kazoo: what to call when something happens to a node."""
        return self._happened

    def _happened(self, event: Any) -> None:
        try:
            if event.type == EventType.NONE:
                return  # about the connection: told elsewhere
            link = self._links[0] if self._links else None
            if link is not None and event.path == self.paths.session(link.session):
                self.read_mail(link)
            else:
                self.watches.came(event.path)
        except Exception:
            log.exception("holdfast: a watch of ZooKeeper was not understood")

    def read_mail(self, link: Link) -> None:
        """Without waiting: what others have to say is passed on when it arrives."""
        link.send([GetData(self.paths.session(link.session), self._happened)], lambda a: self._mail(link, a))

    def _mail(self, link: Link, answers: list[Answer]) -> None:
        if answers[0].error is not None:
            return  # there will be another connection, and then it is read
        try:
            for ended in letters(answers[0].value[0]):
                if ended.nonce not in link.mail:
                    link.mail[ended.nonce] = ended
                    self._desk.suspect(ended.nonce)
                    self._post(ended.nonce)
        except Exception:
            log.exception("holdfast: what others left word of in ZooKeeper was not understood")

    async def note(self, link: Link, nonce: str) -> Tombstone | None:
        """What others did to an attempt of this session, if they did."""
        if nonce not in link.mail and not link.dead and link.registered:
            (read,) = await self.send(link, [GetData(self.paths.session(link.session), None)])
            if not isinstance(read, NoNodeError):
                return next((ended for ended in letters(read[0]) if ended.nonce == nonce), None)
        return link.mail.get(nonce)


def _nobody() -> None:
    """Nobody waits for it."""


def letters(data: bytes | None) -> list[Tombstone]:
    return [decode_note(line) for line in (data or b"").splitlines()]


def letters_with(data: bytes | None, ended: Tombstone) -> bytes:
    lines = [*(data or b"").splitlines(), encode_note(ended)]
    return b"\n".join(lines[-LETTERS_KEPT:])
