"""Redlock for the asyncio driver; a file apart, so that threads never import asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from ...core.effects import NotApplied, Pause, TransientError
from ...engine_api import AdapterContext, Steps
from ...errors import EngineUnavailable
from ...protocols import quorum as family
from ...protocols.quorum import Answers, Broadcast, QuorumCoroutine
from ...rules.requests import Reply, Request, Snapshot
from ...runtime import trampoline
from ..redis.config import Settings
from ..resp.connection_asyncio import StreamLine, open_stream
from .config import RedlockSettings
from .handshake import greet_node, one_server
from .keys import Space
from .quorum import (
    LAST_SECONDS,
    TELL_AGAIN_SECONDS,
    Debts,
    Refusal,
    at_once,
    quorum_of,
    source_of,
)
from .requests import Asking, Question, questions_of
from .tls import ADVICE, no_tls

__all__ = ["RedlockAsyncio"]

T = TypeVar("T")
log = logging.getLogger("holdfast")

AGAIN_SECONDS: Final = 0.1
AGAIN_SECONDS_MAX: Final = 1.0
"""After a connection failed, the next one is tried so much later: ever longer."""

Heard = Callable[[Asking], None]


class RedlockAsyncio:
    """One client's way to its nodes."""

    def __init__(self, settings: RedlockSettings, space: Space, hooks: AdapterContext) -> None:
        self.quorum = quorum_of(settings, hooks)
        self._space = space
        self._node_seconds = settings.node_seconds
        self._at_once = at_once(hooks)
        self._nodes = [_Node(each, hooks, self._unheard, self._met) for each in settings.nodes]
        self._doubles = Refusal()
        """Which of them are one server, where it was found out."""
        self._debts = Debts()
        self._teller: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def source(self) -> str:
        return source_of(self.quorum, self._space.namespace)

    async def apply(self, name: str, request: Request) -> Reply:
        return await self.run(family.apply(self.quorum, name, request))

    async def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return await self.run(family.apply_in_order(self.quorum, steps, stop_when_refused))

    async def renew_batch(self, steps: Steps) -> list[Reply]:
        return await self.run(family.renew_batch(self.quorum, steps))

    async def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return await self.run(family.list_names(self.quorum, prefix))

    async def run(self, script: QuorumCoroutine[T]) -> T:
        return await trampoline.run_in_loop(script, self._do)

    async def _do(self, op: Any) -> Any:
        if op.__class__ is Broadcast:
            return await self._fan(op)
        if op.__class__ is Pause:
            await asyncio.sleep(op.seconds)
            return None
        return self._at_once[op.__class__](op)

    # --- several nodes at once --------------------------------------------------------------------

    async def _fan(self, op: Broadcast) -> Answers:
        """Ask, and go on as soon as the answers are enough, or the time is up."""
        if self._closed:
            raise NotApplied("this client is closed")
        gathering = _Gathering(op)
        try:
            for node, question in questions_of(self._space, op, gathering.answers, 0.0):
                gathering.waiting[node] = asking = Asking(question, node)
                self._nodes[node].ask(asking, gathering.heard)
            await gathering.wait()
        finally:  # also one who is cancelled waits for it no more
            for node, asking in list(gathering.waiting.items()):
                self._nodes[node].leave(asking)
        self._doubles.refuse()
        return gathering.answers.copy()  # what comes from now on is no answer to this any more

    def _met(self, met: _Node) -> None:
        """Two addresses of one server are one vote."""
        for other in self._nodes:
            if other is not met and other.is_open and other.run == met.run:
                self._doubles.found(str(one_server(other.address, met.address)))
                met.close()
                return

    # --- behind somebody's back -------------------------------------------------------------------

    def _unheard(self, question: Question, node: int) -> None:
        if not self._closed and self._debts.add(question, node):
            self._tell_soon()

    def _tell_soon(self) -> None:
        if self._teller is None or self._teller.done():
            self._teller = asyncio.get_running_loop().create_task(self._tell(), name="holdfast-teller")

    async def _tell(self) -> None:
        """Tell nodes what they have not heard, as long as there is something."""
        pause = TELL_AGAIN_SECONDS
        while True:
            await asyncio.sleep(pause)
            due = self._debts.due(self._node_seconds)
            if due is None:
                return
            try:
                pause = self._debts.settle(await self._fan(due[0]), due[1], pause)
            except (TransientError, EngineUnavailable) as trouble:
                log.debug("holdfast: nodes could not be told what they missed: %s", trouble)

    # --- wake-ups: nodes tell nobody anything, so who waits looks by itself -----------------------

    async def listen(self, name: str | None) -> None:
        """Who waits in this client is woken by it; others look now and then."""

    def unlisten(self, nonce: str, name: str | None) -> None:
        """Nothing was begun."""

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Nobody tells us that a client died: its claims run out."""

    # --- the end ----------------------------------------------------------------------------------

    async def close(self) -> None:
        try:
            await self._tell_for_the_last_time()
        finally:
            await self._end()

    async def _end(self) -> None:
        self._closed = True
        tasks = [task for task in (self._teller, *(node.opening for node in self._nodes)) if task is not None]
        for task in tasks:
            task.cancel()
        for node in self._nodes:
            node.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell_for_the_last_time(self) -> None:
        """What nodes do not hear now they keep until it expires."""
        due = self._debts.due(min(self._node_seconds, LAST_SECONDS))
        if due is not None:
            with contextlib.suppress(TransientError, EngineUnavailable):
                await self._fan(due[0])

    def forked(self) -> None:
        for node in self._nodes:
            node.forget()


class _Gathering:
    """One question under way."""

    __slots__ = ("_decided", "_op", "answers", "waiting")

    def __init__(self, op: Broadcast) -> None:
        self._op = op
        self._decided: asyncio.Future[None] | None = None
        self.answers: Answers = {}
        self.waiting: dict[int, Asking] = {}

    def heard(self, asking: Asking) -> None:
        """A node has answered, or will not."""
        if self.waiting.pop(asking.node, None) is None:
            return
        if not self.waiting or self._op.enough(self.answers):
            self._end()

    def _end(self) -> None:
        if self._decided is not None and not self._decided.done():
            self._decided.set_result(None)

    async def wait(self) -> None:
        if not self.waiting or self._op.enough(self.answers):
            return
        loop = asyncio.get_running_loop()
        self._decided = loop.create_future()
        timer = loop.call_later(self._op.seconds, self._end)
        try:
            await self._decided
        finally:
            timer.cancel()


class _Node:
    """One connection to one node, shared by all tasks: what is asked arrives in its order."""

    def __init__(
        self,
        settings: Settings,
        hooks: AdapterContext,
        unheard: Callable[[Question, int], None],
        met: Callable[[_Node], None],
    ) -> None:
        self.address = settings.addresses[0]
        self.run = ""
        """The life of the server in which the last connection was made; empty: there was none."""
        self.opening: asyncio.Task[None] | None = None
        self._settings = settings
        self._client = hooks.client
        self._seconds = hooks.io_timeout
        self._unheard = unheard
        self._met = met
        self._line: StreamLine | None = None
        self._next: dict[Asking, Heard] = {}
        """What is sent as soon as there is a connection."""
        self._failures = 0
        self._again_at = 0.0
        self._trouble = ""

    @property
    def is_open(self) -> bool:
        return self._line is not None and self._line.is_open

    def ask(self, asking: Asking, heard: Heard) -> None:
        """Send it, now or once connected; ``heard`` is told of its result."""
        loop = asyncio.get_running_loop()
        line = self._line
        if line is not None and line.is_open:
            self._send(line, asking, asking.question.payload(self.run), heard)
        elif loop.time() < self._again_at:
            self._failed(asking, NotApplied(self._trouble), heard)
        else:
            self._next[asking] = heard
            if self.opening is None:
                self.opening = loop.create_task(self._open())

    def leave(self, asking: Asking) -> None:
        """Nobody waits for it any more. If it was not sent it never is."""
        if self._next.pop(asking, None) is not None:
            trouble = NotApplied(self._trouble or f"no connection to {self.address} in time")
            self._failed(asking, trouble, _nobody)

    def _send(self, line: StreamLine, asking: Asking, payload: bytes, heard: Heard) -> None:
        count = asking.wanted - len(asking.replies)
        line.several(payload, count).add_done_callback(partial(self._replied, line, asking, heard))

    def _replied(
        self, line: StreamLine, asking: Asking, heard: Heard, future: asyncio.Future[list[Any]]
    ) -> None:
        trouble = None if future.cancelled() else future.exception()
        if isinstance(trouble, TransientError):
            self._trouble = str(trouble)
            self._failed(asking, trouble, heard)
            return
        if future.cancelled():
            return
        replies = future.result()
        if asking.wanted == 1 and replies[0].__class__ is int:  # nearly always
            asking.question.numbered(asking.node, replies[0])
            heard(asking)
            return
        for reply in replies:
            asking.heard(reply)
        again = asking.mended(self.run)
        if again is not None and line.is_open:
            self._send(line, asking, again, heard)
            return
        asking.answered(self.address)
        if isinstance(asking.result, TransientError):
            self._unheard(asking.question, asking.node)
        heard(asking)

    def _failed(self, asking: Asking, trouble: TransientError, heard: Heard) -> None:
        asking.result = trouble
        self._unheard(asking.question, asking.node)
        heard(asking)

    # --- connecting -------------------------------------------------------------------------------

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._connect()
        except (TransientError, TimeoutError) as trouble:
            self._failures += 1
            pause = min(AGAIN_SECONDS * 2 ** min(self._failures - 1, 10), AGAIN_SECONDS_MAX)
            self._again_at = asyncio.get_running_loop().time() + pause
            self._trouble = str(trouble) or self._silence()
        finally:
            self.opening = None
            waiting, self._next = self._next, {}
            for asking, heard in waiting.items():
                if self._line is not None and self._line.is_open:
                    self._send(self._line, asking, asking.question.payload(self.run), heard)
                else:
                    self._failed(asking, NotApplied(self._trouble), heard)

    async def _connect(self) -> None:
        try:
            line = await open_stream(StreamLine, self.address, self._settings.tls, self._seconds)
        except EngineUnavailable as error:
            raise NotApplied(str(error)) from None
        try:
            login = self._settings.login
            run = await greet_node(line, self._settings, (login.username, login.password), self._client)
        except NotApplied as error:
            broke = not line.is_open
            line.close()
            raise (
                NotApplied(f"{error}{ADVICE}") if broke and self._settings.tls is None else error
            ) from None
        except BaseException:
            line.close()
            raise
        self._line, self.run, self._failures = line, run, 0
        self._met(self)

    def _silence(self) -> str:
        """It was connected to or not, and did not go on in time."""
        if self._settings.tls is not None:
            return no_tls(self.address, self._seconds)
        return f"no answer from {self.address} in {self._seconds:g} s"

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        if self._line is not None:
            self._line.close()

    def forget(self) -> None:
        if self._line is not None:
            self._line.forget()


def _nobody(asking: Asking) -> None:
    """Nobody waits for it any more."""
