"""Statements on a few connections, for threads: opened when they are needed, each taken for one statement."""

from __future__ import annotations

import contextlib

from psycopg.pq.abc import PGresult

from ...core.effects import NotApplied, TransientError
from ...errors import EngineUnavailable
from ...runtime.clock import boottime
from ...runtime.connect_timeout import connect_seconds
from .failures import TRIES, Again, can_go_on, cannot_begin, verdict
from .greeting import greet
from .ground import Ground
from .link import Link, LinkLost, ServerError
from .pool import Pool, run
from .statements import Call
from .target import Conninfo

__all__ = ["Commands"]


class Commands:
    """At most ``limit`` connections to one database."""

    def __init__(self, ground: Ground, io_timeout: float, limit: int) -> None:
        self._ground = ground
        self._io_timeout = io_timeout
        self._pool = Pool(self.open_link, limit)

    def close(self) -> None:
        self._pool.close()

    def forked(self) -> None:
        self._pool.forked()

    def perform(self, call: Call) -> PGresult:
        """One statement, in ``io_timeout`` seconds from taking a connection to the answer."""
        ends_at = boottime() + self._io_timeout
        for _ in range(TRIES - 1):
            with contextlib.suppress(Again):
                return self._try(call, ends_at)
        return self._try(call, ends_at)

    def _try(self, call: Call, ends_at: float) -> PGresult:
        pool = self._pool
        link = pool.take(ends_at)
        try:
            result = run(link, link.call(call), ends_at)
            pool.give(link)
        except (ServerError, LinkLost, TimeoutError) as error:
            found = verdict(error, self._io_timeout)
            (pool.give if can_go_on(found) else pool.drop)(link)
            raise found from error
        except BaseException:
            pool.drop(link)  # an interrupt: its answer would be taken for the next one's
            raise
        return result

    def open_link(self, ends_at: float) -> Link:
        """Connected, greeted, with our functions in place. Nothing has been asked of it yet."""
        attempts = self._ground.target.attempts(self._io_timeout)
        within = connect_seconds(self._io_timeout) / len(attempts)
        failure: Exception = NotApplied("there is no server to connect to")
        for number, conninfo in enumerate(attempts):
            now = boottime()
            share = max(ends_at - now, 0.0) / (len(attempts) - number)
            try:
                return self._open_one(conninfo, now + share, within)
            except (TransientError, EngineUnavailable) as error:
                failure = error
        raise failure

    def _open_one(self, conninfo: Conninfo, ends_at: float, within: float) -> Link:
        begins = boottime()
        link = Link(conninfo)
        try:
            run(link, link.connect(), min(ends_at, begins + within))
            source = run(link, greet(link, self._ground.target, self._io_timeout), ends_at)
            self._ground.learn(source, link.pooled)
        except (ServerError, LinkLost, TimeoutError) as error:
            link.close()
            raise cannot_begin(error, within, conninfo.where) from error
        except EngineUnavailable as error:
            link.close()
            error.nothing_was_sent = True
            raise
        except BaseException:
            link.close()
            raise
        return link
