"""The lease table for the threads driver."""

from __future__ import annotations

import contextlib

from psycopg.pq.abc import PGresult

from ...core.ops import Refused, Troubled
from ...drivers.adapter import Hooks, Steps
from ...drivers.clock import boottime
from ...errors import EngineUnavailable
from ...rules.requests import Reply, Request, Snapshot
from .ears import Ears
from .failures import TRIES, Again, can_go_on, cannot_begin, verdict
from .greeting import greet
from .ground import COMMAND_LINKS, Ground
from .link import Link, LinkLost, ServerError
from .listener import Listener
from .listening import listening
from .pool import Pool, run
from .statements import PAGE, Call, Statements, answer_of, batches, listed, replies_of, reply_of
from .target import Conninfo

__all__ = ["PostgresThreads"]


class PostgresThreads:
    """One client's view of the table."""

    def __init__(self, ground: Ground, hooks: Hooks) -> None:
        self._ground = ground
        self._io_timeout = hooks.io_timeout
        self._statements = Statements(ground.target.schema, ground.namespace)
        self._commands = Pool(self.open_link, COMMAND_LINKS)
        self._keeping = Pool(self.open_link, 1)
        """For the keeper alone: whoever hangs elsewhere does not keep it from renewing."""
        self._ears = Ears(hooks.post)
        self._listener = Listener(
            self, listening(self._ears, self._statements, hooks.client), hooks.io_timeout
        )

    @property
    def source(self) -> str:
        return self._ground.source

    # --- what the driver asks for

    def apply(self, name: str, request: Request) -> Reply:
        heard = self._ears.expect(request)
        result = self.perform(self._statements.apply(name, request))
        return self._ears.answered(name, request, reply_of(answer_of(result), request), heard)

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        result = self.perform(self._statements.apply_in_order(steps, stop_when_refused))
        return replies_of(answer_of(result), [request for _, request in steps])

    def tend(self, steps: Steps) -> list[Reply]:
        replies: dict[int, Reply] = {}
        for batch in batches(steps):
            asked = [step for _, step in batch]
            result = self._perform(self._keeping, self._statements.tend(asked))
            answered = replies_of(answer_of(result), [request for _, request in asked])
            replies.update(zip([place for place, _ in batch], answered, strict=True))
        return [replies[place] for place in range(len(steps))]

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        found: list[tuple[str, Snapshot]] = []
        while len(found) % PAGE == 0:
            after = found[-1][0] if found else ""
            page = listed(self.perform(self._statements.list_names(prefix, after)))
            if not page:
                break
            found += page
        return found

    def listen(self, name: str | None) -> None:
        """All names alike: wake-ups are sent to clients."""
        self._listener.start()

    def unlisten(self, name: str) -> None:
        """What is heard for one name is heard for all."""

    @property
    def hearing(self) -> None:
        """A thread of its own hears for all."""

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Nobody here knows who is alive: leases run out."""

    def unwatch_clients(self, nonce: str) -> None:
        self._ears.forget(nonce)

    def close(self) -> None:
        self._listener.close()
        self._commands.close()
        self._keeping.close()

    def forked(self) -> None:
        self._commands.forked()
        self._keeping.forked()
        self._listener.forked()

    # --- how it is done

    def perform(self, call: Call) -> PGresult:
        return self._perform(self._commands, call)

    def _perform(self, pool: Pool, call: Call) -> PGresult:
        """One statement, in ``io_timeout`` seconds from taking a connection to the answer."""
        ends_at = boottime() + self._io_timeout
        for _ in range(TRIES - 1):
            with contextlib.suppress(Again):
                return self._try(pool, call, ends_at)
        return self._try(pool, call, ends_at)

    def _try(self, pool: Pool, call: Call, ends_at: float) -> PGresult:
        link = pool.take(ends_at)
        try:
            result = run(link, link.call(call), ends_at)
        except (ServerError, LinkLost, TimeoutError) as error:
            found = verdict(error, self._io_timeout)
            (pool.give if can_go_on(found) else pool.drop)(link)
            raise found from error
        except BaseException:
            pool.drop(link)  # an interrupt: its answer would be taken for the next one's
            raise
        pool.give(link)
        return result

    def open_link(self, ends_at: float) -> Link:
        """Connected, greeted, with our functions in place. Nothing has been asked of it yet."""
        attempts = self._ground.target.attempts(self._io_timeout)
        failure: Exception = Refused("there is no server to connect to")
        for number, conninfo in enumerate(attempts):
            now = boottime()
            share = max(ends_at - now, 0.0) / (len(attempts) - number)
            try:
                return self._open_one(conninfo, now + share)
            except (Troubled, EngineUnavailable) as error:
                failure = error
        raise failure

    def _open_one(self, conninfo: Conninfo, ends_at: float) -> Link:
        link = Link(conninfo)
        try:
            run(link, link.connect(), ends_at)
            self._ground.learn(run(link, greet(link, self._ground.target, self._io_timeout), ends_at))
        except (ServerError, LinkLost, TimeoutError) as error:
            link.close()
            raise cannot_begin(error, self._io_timeout) from error
        except BaseException:
            link.close()
            raise
        return link
