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

    __slots__ = ("__weakref__", "_lines", "_poll", "_space", "_used_at")

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
        answers: Answers = {}
        waiting: dict[int, Asking] = {}
        lines = self._lines
        for asking in askings_of(self._space, op):
            line = lines[asking.node]
            line.ask(asking, now)
            if asking.result is None:
                waiting[asking.node] = asking
            else:
                answers[asking.node] = asking.result
        if op.enough(answers):
            ends_at = now
        while waiting and now < ends_at:
            for node in self._look_up(ends_at - now):
                asked = waiting.get(node)
                if asked is not None and asked.result is not None:
                    del waiting[node]
                    answers[node] = asked.result
                    if op.enough(answers):
                        ends_at = now
            now = monotonic()
        for node, asking in waiting.items():
            lines[node].leave(asking)
            if asking.result is not None:
                answers[node] = asking.result
        self._used_at = now
        return answers

    def _look_up(self, seconds: float) -> list[int]:
        """Wait for news of any connection, and have it seen to. The nodes there were news of."""
        news = self._poll.poll(max(seconds, 0.0) * 1000)
        if not news:
            return []
        now = monotonic()
        ready = {fileno for fileno, _ in news}
        told = []
        for line in self._lines:
            if line.fileno in ready:
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
