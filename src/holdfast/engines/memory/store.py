"""Records in a dictionary: the rules themselves, under one mutex."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...engine_api import AdapterContext, Steps
from ...rules.record import EMPTY, Record, is_idle
from ...rules.requests import Inspect, Reply, Request, Snapshot, Wake
from ...rules.transitions import apply, apply_in_order
from ...runtime.clock import boottime, wall_us
from ...runtime.forks import register_after_fork

if TYPE_CHECKING:
    import asyncio

__all__ = ["MemoryStore", "Space", "space"]


class Space:
    """All records of one name, shared by the clients of this process."""

    def __init__(self) -> None:
        self._begin()
        register_after_fork(self, first=True)

    def _begin(self) -> None:
        self.id = secrets.token_hex(8)
        self.mutex = threading.Lock()
        self.records: dict[tuple[str, str], Record] = {}
        self.posts: dict[str, Callable[[str], None]] = {}

    def forked(self) -> None:
        """The child starts with an empty space: its inherited records belong to another process."""
        self._begin()

    def wake(self, wakes: tuple[Wake, ...]) -> None:
        for wake in wakes:
            post = self.posts.get(wake.client)
            if post is not None:
                post(wake.nonce)


_spaces: dict[str, Space] = {}
_spaces_mutex = threading.Lock()


def space(name: str) -> Space:
    with _spaces_mutex:
        return _spaces.setdefault(name, Space())


class MemoryStore:
    """One client's view of a space."""

    __slots__ = ("_client", "_namespace", "_space")

    notification_reader = None

    def __init__(self, space: Space, namespace: str, context: AdapterContext) -> None:
        self._space = space
        self._namespace = namespace
        self._client = context.client
        space.posts[context.client] = context.post

    @property
    def source(self) -> str:
        return f"memory:{self._space.id}/{self._namespace}"

    def apply(self, name: str, request: Request) -> Reply:
        space = self._space
        key = (self._namespace, name)
        with space.mutex:
            record = space.records.get(key, EMPTY)
            after, reply, wakes = apply(record, request, boottime(), wall_us())
            if after is not record:
                space.records[key] = after
        if wakes:
            space.wake(wakes)
        return reply

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        space = self._space
        with space.mutex:
            given = {name: space.records.get((self._namespace, name), EMPTY) for name, _ in steps}
            done = apply_in_order(given, steps, boottime(), wall_us(), stop_when_refused)
            for (name, _), step in zip(steps, done, strict=False):
                space.records[self._namespace, name] = step.record
        for step in done:
            space.wake(step.wake)
        return [step.reply for step in done]

    def renew_batch(self, steps: Steps) -> list[Reply]:
        return [self.apply(name, request) for name, request in steps]

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        now, wall = boottime(), wall_us()
        with self._space.mutex:
            found = [
                (name, record)
                for (namespace, name), record in self._space.records.items()
                if namespace == self._namespace and name.startswith(prefix)
            ]
        listed = []
        for name, record in sorted(found, key=lambda item: item[0].encode()):
            snapshot = apply(record, Inspect(), now, wall).reply
            if isinstance(snapshot, Snapshot) and not (
                is_idle(snapshot.record) and snapshot.record.value is None
            ):
                listed.append((name, snapshot))
        return listed

    def listen_in_thread(self) -> None:
        """The client that causes a wake-up delivers it itself."""

    def listen_in_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """The client that causes a wake-up delivers it itself."""

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Clients of this process do not die alone."""

    def unlisten(self, nonce: str, name: str | None) -> None:
        """There is nothing to stop."""

    def close(self) -> None:
        self._space.posts.pop(self._client, None)

    def forked(self) -> None:
        """The space itself is reset."""
