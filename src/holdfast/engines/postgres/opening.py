"""Connections opened in an event loop; a file of asyncio's own."""

from __future__ import annotations

import asyncio

from ...core.effects import NotApplied, TransientError
from ...errors import EngineUnavailable
from ...runtime.clock import boottime
from ...runtime.connect_timeout import connect_seconds
from .failures import cannot_begin
from .greeting import greet
from .ground import Ground
from .link import Link, LinkLost, ServerError
from .loop import run
from .resolving import resolved
from .target import Conninfo

__all__ = ["Opener"]


class Opener:
    """Opens connections to one database: host by host, address by address."""

    def __init__(self, ground: Ground, io_timeout: float) -> None:
        self._ground = ground
        self._io_timeout = io_timeout

    async def open_link(self, ends_at: float) -> Link:
        """Connected, greeted, with our functions in place. Nothing has been asked of it yet."""
        failure: Exception = NotApplied("there is no server to connect to")
        hosts = self._ground.target.attempts(self._io_timeout)
        for number, host in enumerate(hosts):
            now = boottime()
            share = now + max(ends_at - now, 0.0) / (len(hosts) - number)
            try:
                return await self._open_host(host, share, connect_seconds(self._io_timeout) / len(hosts))
            except (TransientError, EngineUnavailable) as error:
                failure = error
        raise failure

    async def _open_host(self, host: Conninfo, ends_at: float, within: float) -> Link:
        try:
            async with asyncio.timeout(min(max(ends_at - boottime(), 0.0), within)):
                addresses = await resolved(host)
        except TimeoutError:
            raise NotApplied("the name of the server was not found in time") from None
        failure: Exception = NotApplied("the server has no address")
        for number, conninfo in enumerate(addresses):
            now = boottime()
            share = now + max(ends_at - now, 0.0) / (len(addresses) - number)
            try:
                return await self._open_one(conninfo, share, within / len(addresses))
            except (TransientError, EngineUnavailable) as error:
                failure = error
        raise failure

    async def _open_one(self, conninfo: Conninfo, ends_at: float, within: float) -> Link:
        begins = boottime()
        link = Link(conninfo)
        try:
            await run(link, link.connect(), min(ends_at, begins + within))
            source = await run(link, greet(link, self._ground.target, self._io_timeout), ends_at)
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
