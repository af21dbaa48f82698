"""The lease table for the asyncio driver; a file apart, so that threads never import asyncio."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from ...engine_api import AdapterContext, Steps
from ...rules.requests import Reply, Request, Snapshot
from ...runtime.clock import boottime
from .ears import Ears
from .ground import COMMAND_LINKS, Ground
from .link import READABLE, Link
from .listening import Need, Open, Perform, Rest, Run, listening
from .loop import LoopPool, Readiness, run
from .opening import Opener
from .statements import PAGE, Statements, answer_of, batches, listed, replies_of, reply_of

__all__ = ["PostgresAsyncio"]

log = logging.getLogger("holdfast")


class PostgresAsyncio:
    """One client's view of the table."""

    def __init__(self, ground: Ground, hooks: AdapterContext) -> None:
        self._ground = ground
        self._io_timeout = hooks.io_timeout
        self._statements = Statements(ground.target.schema, ground.namespace)
        self._opener = Opener(ground, hooks.io_timeout)
        self._commands = LoopPool(self._opener.open_link, COMMAND_LINKS, hooks.io_timeout)
        self._keeping = LoopPool(self._opener.open_link, 1, hooks.io_timeout)
        """For the keeper alone: whoever hangs elsewhere does not keep it from renewing."""
        self._ears = Ears(hooks.post)
        self._script = listening(self._ears, self._statements, hooks.client)
        self._listener: asyncio.Task[None] | None = None
        self._link: Link | None = None
        """The one that listens."""

    @property
    def source(self) -> str:
        return self._ground.source

    # --- what the driver asks for

    async def apply(self, name: str, request: Request) -> Reply:
        heard = self._ears.expect(request)
        result = await self._commands.perform(self._statements.apply(name, request))
        return self._ears.answered(name, request, reply_of(answer_of(result), request), heard)

    async def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        result = await self._commands.perform(self._statements.apply_in_order(steps, stop_when_refused))
        return replies_of(answer_of(result), [request for _, request in steps])

    async def renew_batch(self, steps: Steps) -> list[Reply]:
        replies: dict[int, Reply] = {}
        for batch in batches(steps):
            asked = [step for _, step in batch]
            result = await self._keeping.perform(self._statements.renew_batch(asked))
            answered = replies_of(answer_of(result), [request for _, request in asked])
            replies.update(zip([place for place, _ in batch], answered, strict=True))
        return [replies[place] for place in range(len(steps))]

    async def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        found: list[tuple[str, Snapshot]] = []
        while len(found) % PAGE == 0:
            after = found[-1][0] if found else ""
            page = listed(await self._commands.perform(self._statements.list_names(prefix, after)))
            if not page:
                break
            found += page
        return found

    async def listen(self, name: str | None) -> None:
        """All names alike. Returns at once: until something is heard, waiters look by themselves."""
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen(), name="holdfast-postgres")

    def unlisten(self, nonce: str, name: str | None) -> None:
        """What is heard for one name is heard for all."""
        self._ears.forget(nonce)

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Nobody here knows who is alive: leases run out."""

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        self._commands.close()
        self._keeping.close()

    def forked(self) -> None:
        self._commands.forked()
        self._keeping.forked()
        if self._link is not None:
            self._link.forked()

    # --- hearing

    async def _listen(self) -> None:
        script = self._script
        try:
            need = next(script)
            while True:
                try:
                    done = await self._do(need)
                except Exception as error:  # noqa: BLE001 - the script decides what becomes of it
                    need = script.throw(error)
                else:
                    need = script.send(done)
        except Exception:
            log.exception("holdfast: wake-ups are no longer heard; waiters look by themselves")
        finally:
            script.close()

    async def _do(self, need: Need) -> Any:
        ends_at = boottime() + self._io_timeout
        match need:
            case Rest(seconds, link):
                if link is None:
                    return await asyncio.sleep(seconds)
                return await Readiness(asyncio.get_running_loop(), link.fileno, READABLE).wait(seconds)
            case Run(link, waits):
                return await run(link, waits, ends_at)
            case Perform(call):
                return await self._commands.perform(call)
            case Open():
                self._link = await self._opener.open_link(ends_at)
                return self._link
