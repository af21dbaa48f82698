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
from .config import RedlockSettings
from .connection import NodeLine
from .handshake import one_server
from .keys import Space
from .requests import Question

__all__ = ["Bundle"]

IDLE_SECONDS: Final = 0.5
"""One unused for longer is looked at before it is used: a server may have closed its connection."""


LEFT_SECONDS: Final = 0.02
"""One unused for longer is read by another thread, if a node has yet to answer there."""


class Bundle:
    """Used by one thread at a time."""

    __slots__ = ("__weakref__", "_by_fileno", "_left", "_lines", "_looks", "_poll", "_space", "_used_at")

    def __init__(
        self,
        settings: RedlockSettings,
        space: Space,
        client: str,
        seconds: float,
        unheard: Callable[[Question, int], None],
        left: Callable[[], None],
    ) -> None:
        """``left`` is told that a node has not answered yet what must not get lost, and nobody waits here."""
        self._space = space
        self._left = left
        self._poll = select.poll()
        self._looks = AdaptiveSpin()
        self._used_at = monotonic()
        self._lines = [
            NodeLine(node, each, client, seconds, self._poll, unheard)
            for node, each in enumerate(settings.nodes)
        ]
        self._by_fileno: dict[int, NodeLine] = {}

    def fan(self, op: Broadcast) -> Answers:
        """Ask, and go on as soon as the answers are enough, or the time is up."""
        try:
            now = monotonic()
            if now - self._used_at > IDLE_SECONDS:
                self._look_up(0.0)
            asks, enough, seconds, _, _ = op
            ends_at = now + seconds
            answers: Answers = {}
            lines, batch = self._lines, None
            for node, each in asks:
                if each is not batch:  # mostly all are asked the same, and it is packed once
                    batch, question = each, Question(self._space, op, each, answers, now)
                lines[node].ask(question, now)
            look_until = self._looks.next_deadline()
            wanted = len(asks)
            while not enough(answers) and len(answers) < wanted:
                if now >= ends_at:
                    self._look_up(0.0)  # this thread may not have run since answers came
                    break
                self._look_up(ends_at - now, look_until if now < look_until else 0.0)
                now = monotonic()
            if now < look_until:
                self._looks.found()
            self._used_at = now
            if len(answers) == wanted:
                return answers
            for line in lines:
                if line.next is not None:
                    line.leave()
            if op.behind_until is not None:
                self._left()
            return answers.copy()  # what comes from now on is no answer to this any more
        except BaseException:
            self.close()  # nobody knows what was sent and what is to come
            raise

    def _look_up(self, seconds: float, look_until: float = 0.0) -> None:
        """Wait for news of any connection, and have it seen to."""
        by_fileno = self._by_fileno
        for fileno, _ in self._news(seconds, look_until):
            if fileno not in by_fileno or by_fileno[fileno].fileno != fileno:
                self._by_fileno = by_fileno = {each.fileno: each for each in self._lines}
                if fileno not in by_fileno:
                    continue  # given up since the poll told of it
            line = by_fileno[fileno]
            if line.run:
                line.ready()
            else:
                line.ready()
                if line.run:
                    self._refuse_doubles(line)

    def _news(self, seconds: float, look_until: float) -> list[tuple[int, int]]:
        """At first without sleeping, where enough of them have answered soon: see ``adaptive_spin``."""
        while look_until:
            yield_processor()
            news = self._poll.poll(0)
            if news:
                return news
            if monotonic() >= look_until:
                break
        return self._poll.poll(seconds * 1000)

    def _refuse_doubles(self, line: NodeLine) -> None:
        for other in self._lines:
            if other is not line and other.run == line.run:
                raise one_server(other.address, line.address)

    # --- while nobody uses it -------------------------------------------------------------------

    def is_owed(self) -> bool:
        """Whether a node has yet to answer something. For any thread."""
        return any(line.is_owed for line in self._lines)

    def is_left(self, now: float) -> bool:
        """Whether that is so, and nobody has come back for a while to hear it. For any thread."""
        return now - self._used_at > LEFT_SECONDS and self.is_owed()

    def catch_up(self, now: float) -> None:
        """Read what was answered since, send what that calls for; give up nodes that have not answered."""
        try:
            self._look_up(0.0)
            for line in self._lines:
                line.give_up(now)
        except BaseException:
            self.close()
            raise

    def end(self) -> None:
        """Close it, having heard what was answered since it was last used."""
        with contextlib.suppress(EngineUnavailable):
            self._look_up(0.0)
        self.close()

    def close(self) -> None:
        for line in self._lines:
            line.close()

    def forget(self) -> None:
        """This is the child of a fork."""
        for line in self._lines:
            line.forget()
