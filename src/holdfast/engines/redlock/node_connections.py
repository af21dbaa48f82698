"""One connection to each node, and a question to several of them at once, asked by one thread."""

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
from .requests import NodeRequest

__all__ = ["NodeConnections"]

IDLE_SECONDS: Final = 0.5
"""One unused for longer is looked at before it is used: a server may have closed its connection."""


ABANDONED_SECONDS: Final = 0.02
"""One unused for longer is read by another thread, if a node has yet to answer there."""


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
        settings: RedlockConfig,
        space: Keyspace,
        client: str,
        seconds: float,
        unheard: Callable[[NodeRequest, int], None],
        left: Callable[[], None],
    ) -> None:
        """``left`` is told that a node has not answered yet what must not get lost, and nobody waits here."""
        self._space = space
        self._on_abandoned = left
        self._poll = select.poll()
        self._spin = AdaptiveSpin()
        self._used_at = monotonic()
        self._connections = [
            NodeConnection(node, each, client, seconds, self._poll, unheard)
            for node, each in enumerate(settings.nodes)
        ]
        self._by_fileno: dict[int, NodeConnection] = {}

    def broadcast(self, op: Broadcast) -> Answers:
        """Ask, and go on as soon as the answers are enough, or the time is up."""
        try:
            now = monotonic()
            if now - self._used_at > IDLE_SECONDS:
                self._process_events(0.0)
            asks, enough, seconds, _, _ = op
            ends_at = now + seconds
            answers: Answers = {}
            lines, batch = self._connections, None
            for node, each in asks:
                if each is not batch:  # mostly all are asked the same, and it is packed once
                    batch, question = each, NodeRequest(self._space, op, each, answers, now)
                lines[node].send_request(question, now)
            look_until = self._spin.next_deadline()
            wanted = len(asks)
            while not enough(answers) and len(answers) < wanted:
                if now >= ends_at:
                    self._process_events(0.0)  # this thread may not have run since answers came
                    break
                self._process_events(ends_at - now, look_until if now < look_until else 0.0)
                now = monotonic()
            if now < look_until:
                self._spin.found()
            self._used_at = now
            if len(answers) == wanted:
                return answers
            for line in lines:
                if line.next_request is not None:
                    line.abandon_unsent()
            if op.handoff_until is not None:
                self._on_abandoned()
            return answers.copy()  # what comes from now on is no answer to this any more
        except BaseException:
            self.close()  # nobody knows what was sent and what is to come
            raise

    def _process_events(self, seconds: float, look_until: float = 0.0) -> None:
        """Wait for news of any connection, and have it seen to."""
        by_fileno = self._by_fileno
        for fileno, _ in self._poll_events(seconds, look_until):
            if fileno not in by_fileno or by_fileno[fileno].fileno != fileno:
                self._by_fileno = by_fileno = {each.fileno: each for each in self._connections}
                if fileno not in by_fileno:
                    continue  # given up since the poll told of it
            line = by_fileno[fileno]
            if line.run_id:
                line.handle_event()
            else:
                line.handle_event()
                if line.run_id:
                    self._refuse_same_server(line)

    def _poll_events(self, seconds: float, look_until: float) -> list[tuple[int, int]]:
        """At first without sleeping, where enough of them have answered soon: see ``adaptive_spin``."""
        while look_until:
            yield_processor()
            news = self._poll.poll(0)
            if news:
                return news
            if monotonic() >= look_until:
                break
        return self._poll.poll(seconds * 1000)

    def _refuse_same_server(self, line: NodeConnection) -> None:
        for other in self._connections:
            if other is not line and other.run_id == line.run_id:
                raise same_server_error(other.address, line.address)

    # --- while nobody uses it -------------------------------------------------------------------

    def is_pending(self) -> bool:
        """Whether a node has yet to answer something. For any thread."""
        return any(line.is_pending for line in self._connections)

    def is_abandoned(self, now: float) -> bool:
        """Whether that is so, and nobody has come back for a while to hear it. For any thread."""
        return now - self._used_at > ABANDONED_SECONDS and self.is_pending()

    def read_late_replies(self, now: float) -> None:
        """Read what was answered since, send what that calls for; give up nodes that have not answered."""
        try:
            self._process_events(0.0)
            for line in self._connections:
                line.check_timeout(now)
        except BaseException:
            self.close()
            raise

    def read_and_close(self) -> None:
        """Close it, having heard what was answered since it was last used."""
        with contextlib.suppress(EngineUnavailable):
            self._process_events(0.0)
        self.close()

    def close(self) -> None:
        for line in self._connections:
            line.close()

    def detach_after_fork(self) -> None:
        """This is the child of a fork."""
        for line in self._connections:
            line.detach_after_fork()
