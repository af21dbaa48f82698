"""The lease table for the threads driver."""

from __future__ import annotations

from ...engine_api import AdapterContext, Steps
from ...rules.requests import Reply, Request, Snapshot
from .commands import Commands
from .ears import Ears
from .ground import COMMAND_LINKS, Ground
from .listener import Listener
from .listening import listening
from .statements import PAGE, Statements, answer_of, batches, listed, replies_of, reply_of

__all__ = ["PostgresThreads"]


class PostgresThreads:
    """One client's view of the table."""

    def __init__(self, ground: Ground, hooks: AdapterContext) -> None:
        self._ground = ground
        self._statements = Statements(ground.target.schema, ground.namespace)
        self._commands = Commands(ground, hooks.io_timeout, COMMAND_LINKS)
        self._keeping = Commands(ground, hooks.io_timeout, 1)
        """For the keeper alone: whoever hangs elsewhere does not keep it from renewing."""
        self._ears = Ears(hooks.post)
        self._listener = Listener(
            self._commands, listening(self._ears, self._statements, hooks.client), hooks.io_timeout
        )

    @property
    def source(self) -> str:
        return self._ground.source

    # --- what the driver asks for

    def apply(self, name: str, request: Request) -> Reply:
        heard = self._ears.expect(request)
        result = self._commands.perform(self._statements.apply(name, request))
        return self._ears.answered(name, request, reply_of(answer_of(result), request), heard)

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        result = self._commands.perform(self._statements.apply_in_order(steps, stop_when_refused))
        return replies_of(answer_of(result), [request for _, request in steps])

    def renew_batch(self, steps: Steps) -> list[Reply]:
        replies: dict[int, Reply] = {}
        for batch in batches(steps):
            asked = [step for _, step in batch]
            result = self._keeping.perform(self._statements.renew_batch(asked))
            answered = replies_of(answer_of(result), [request for _, request in asked])
            replies.update(zip([place for place, _ in batch], answered, strict=True))
        return [replies[place] for place in range(len(steps))]

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        found: list[tuple[str, Snapshot]] = []
        while len(found) % PAGE == 0:
            after = found[-1][0] if found else ""
            page = listed(self._commands.perform(self._statements.list_names(prefix, after)))
            if not page:
                break
            found += page
        return found

    def listen(self, name: str | None) -> None:
        """All names alike: wake-ups are sent to clients."""
        self._listener.start()

    def unlisten(self, nonce: str, name: str | None) -> None:
        """What is heard for one name is heard for all."""
        self._ears.forget(nonce)

    @property
    def notification_reader(self) -> None:
        """A thread of its own hears for all."""

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Nobody here knows who is alive: leases run out."""

    def close(self) -> None:
        self._listener.close()
        self._commands.close()
        self._keeping.close()

    def forked(self) -> None:
        self._commands.forked()
        self._keeping.forked()
        self._listener.forked()
