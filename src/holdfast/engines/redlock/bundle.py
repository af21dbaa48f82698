"""One connection to each node, and a question to several of them at once, asked by one thread."""

from __future__ import annotations

import select
from collections.abc import Callable
from time import monotonic
from typing import Final

from ...protocols.quorum import Answers, Fan
from .asking import Asking, askings_of
from .greeting import one_server
from .keys import Space
from .lines import NodeLine
from .settings import RedlockSettings

__all__ = ["Bundle"]

IDLE_SECONDS: Final = 0.5
"""One unused for longer is looked at before it is used: a server may have closed its connection."""


class Bundle:
    """Used by one thread at a time."""

    __slots__ = ("__weakref__", "_by_fileno", "_lines", "_poll", "_space", "_used_at")

    def __init__(
        self,
        settings: RedlockSettings,
        space: Space,
        client: str,
        seconds: float,
        unheard: Callable[[Asking], None],
    ) -> None:
        self._space = space
        self._poll = select.poll()
        self._used_at = monotonic()
        self._lines = [
            NodeLine(node, each, client, seconds, self._poll, unheard)
            for node, each in enumerate(settings.nodes)
        ]
        self._by_fileno: dict[int, NodeLine] = {}

    def fan(self, op: Fan) -> Answers:
        """Ask, and go on as soon as the answers are enough, or the time is up."""
        try:
            return self._fan(op)
        except BaseException:
            self.close()  # nobody knows what was sent and what is to come
            raise

    def _fan(self, op: Fan) -> Answers:
        now = monotonic()
        ends_at = now + op.seconds
        if now - self._used_at > IDLE_SECONDS:
            self._look_up(0.0)
        lines = self._lines
        answers: Answers = {}
        asked = {}
        for asking in askings_of(self._space, op):
            asked[asking.node] = asking
            lines[asking.node].ask(asking, now)
            if asking.result is not None:
                answers[asking.node] = asking.result
        if op.enough(answers):
            ends_at = now
        while now < ends_at and len(answers) < len(asked):
            for node in self._look_up(ends_at - now):
                told = asked.get(node)
                if told is not None and told.result is not None:
                    answers[node] = told.result
            if op.enough(answers):
                break
            now = monotonic()
        if len(answers) < len(asked):
            for node, asking in asked.items():
                if node not in answers:
                    lines[node].leave(asking)
                    if asking.result is not None:
                        answers[node] = asking.result
        self._used_at = now
        return answers

    def _look_up(self, seconds: float) -> list[int]:
        """Wait for news of any connection, and have it seen to. The nodes there were news of."""
        news = self._poll.poll(max(seconds, 0.0) * 1000)
        now = monotonic()
        told = []
        for fileno, _ in news:
            line = self._by_fileno.get(fileno)
            if line is None or line.fileno != fileno:
                self._by_fileno = {each.fileno: each for each in self._lines}
                line = self._by_fileno.get(fileno)
                if line is None:
                    continue  # given up since the poll told of it
            is_new = not line.run
            line.ready(now)
            told.append(line.node)
            if is_new and line.run:
                self._refuse_doubles(line)
        return told

    def _refuse_doubles(self, line: NodeLine) -> None:
        for other in self._lines:
            if other is not line and other.run == line.run:
                raise one_server(other.address, line.address)

    def close(self) -> None:
        for line in self._lines:
            line.close()

    def forget(self) -> None:
        """This is the child of a fork."""
        for line in self._lines:
            line.forget()
