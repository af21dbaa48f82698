"""One connection to each node, and requests from one thread to several nodes at once."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable
from time import monotonic
from typing import Final

from ...errors import EngineUnavailable
from ...protocols.quorum import Answers, Broadcast
from ...runtime.adaptive_spin import AdaptiveSpin, yield_processor
from .config import RedlockConfig
from .connection import NodeConnection
from .errors import same_server_error
from .keys import Keyspace
from .rpc import NodeRequest

__all__ = ["NodeConnections"]

IDLE_SECONDS: Final = 0.5
"""Connections that were idle for longer are checked before use: a server may have closed its connection."""


ABANDONED_SECONDS: Final = 0.02
"""Connections that were idle for longer are read by another thread while replies are pending on them."""


class NodeConnections:
    """Used by one thread at a time."""

    __slots__ = (
        "__weakref__",
        "_by_fileno",
        "_connections",
        "_on_abandoned",
        "_poll",
        "_space",
        "_spin",
        "_used_at",
    )

    def __init__(
        self,
        config: RedlockConfig,
        space: Keyspace,
        client: str,
        seconds: float,
        on_undelivered: Callable[[NodeRequest, int], None],
        on_abandoned: Callable[[], None],
    ) -> None:
        """``on_abandoned`` is called when a reply that must not get lost is pending and the caller has gone
        on."""
        self._space = space
        self._on_abandoned = on_abandoned
        self._poll = select.poll()
        self._spin = AdaptiveSpin()
        self._used_at = monotonic()
        self._connections = [
            NodeConnection(node, each, client, seconds, self._poll, on_undelivered)
            for node, each in enumerate(config.nodes)
        ]
        self._by_fileno: dict[int, NodeConnection] = {}

    def broadcast(self, broadcast: Broadcast) -> Answers:
        """Ask the nodes. Returns once the answers are enough, or the time is up."""
        try:
            now = monotonic()
            if now - self._used_at > IDLE_SECONDS:
                self._process_events(0.0)
            asks, enough, seconds, _, _ = broadcast
            ends_at = now + seconds
            answers: Answers = {}
            connections, batch = self._connections, None
            for node, each in asks:
                if each is not batch:  # nearly always all get the same batch, which is packed once
                    batch, request = each, NodeRequest(self._space, broadcast, each, answers, now)
                connections[node].send_request(request, now)
            spin_until = self._spin.next_deadline()
            wanted = len(asks)
            while not enough(answers) and len(answers) < wanted:
                if now >= ends_at:
                    self._process_events(0.0)  # answers may have come while this thread did not run
                    break
                self._process_events(ends_at - now, spin_until if now < spin_until else 0.0)
                now = monotonic()
            if now < spin_until:
                self._spin.found()
            self._used_at = now
            if len(answers) == wanted:
                return answers
            for connection in connections:
                if connection.next_request is not None:
                    connection.abandon_unsent()
            if broadcast.handoff_until is not None:
                self._on_abandoned()
            return answers.copy()  # later replies must not change it
        except BaseException:
            self.close()  # what was sent, and which replies are to come, is unknown
            raise

    def _process_events(self, seconds: float, spin_until: float = 0.0) -> None:
        """Wait for events of any connection and handle them."""
        by_fileno = self._by_fileno
        for fileno, _ in self._poll_events(seconds, spin_until):
            if fileno not in by_fileno or by_fileno[fileno].fileno != fileno:
                self._by_fileno = by_fileno = {each.fileno: each for each in self._connections}
                if fileno not in by_fileno:
                    continue  # it was closed after the poll had reported it
            connection = by_fileno[fileno]
            if connection.run_id:
                connection.handle_event()
            else:
                connection.handle_event()
                if connection.run_id:
                    self._refuse_same_server(connection)

    def _poll_events(self, seconds: float, spin_until: float) -> list[tuple[int, int]]:
        """Spin before sleeping where that has paid off: see ``adaptive_spin``."""
        while spin_until:
            yield_processor()
            events = self._poll.poll(0)
            if events:
                return events
            if monotonic() >= spin_until:
                break
        return self._poll.poll(seconds * 1000)

    def _refuse_same_server(self, connection: NodeConnection) -> None:
        for other in self._connections:
            if other is not connection and other.run_id == connection.run_id:
                raise same_server_error(other.address, connection.address)

    # --- while idle -----------------------------------------------------------------------------

    def is_pending(self) -> bool:
        """Whether a reply is pending. For any thread."""
        return any(connection.is_pending for connection in self._connections)

    def is_abandoned(self, now: float) -> bool:
        """Whether a reply is pending and no caller has used the connections for a while. For any thread."""
        return now - self._used_at > ABANDONED_SECONDS and self.is_pending()

    def read_late_replies(self, now: float) -> None:
        """Read late replies, send what they call for, and give up nodes that have not answered in time."""
        try:
            self._process_events(0.0)
            for connection in self._connections:
                connection.check_timeout(now)
        except BaseException:
            self.close()
            raise

    def read_and_close(self) -> None:
        """Read late replies, then close."""
        with contextlib.suppress(EngineUnavailable):
            self._process_events(0.0)
        self.close()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def detach_after_fork(self) -> None:
        """In the child of a fork."""
        for connection in self._connections:
            connection.detach_after_fork()
