"""A server that stands still for longer than a ttl: told as an engine that cannot be reached, by name."""

from __future__ import annotations

import asyncio
import logging

import pytest

import holdfast
import holdfast.aio
from holdfast import LockLost
from holdfast.lab.servers import Redis
from support import wait_until

pytestmark = pytest.mark.engine("redis")

TTL = 2.0
"""Seconds: less than io_timeout, so that the loss comes before the renewal is given up."""


def _is_told_of_the_engine(loss: LockLost, url: str, logs: list[logging.LogRecord]) -> None:
    assert loss.reason == "unreachable"
    assert url in str(loss)
    assert "has not answered" in str(loss)
    assert "paused" not in str(loss)
    (warning,) = [record for record in logs if record.levelname == "WARNING"]
    assert url in warning.getMessage()
    assert "no answer" in warning.getMessage()


def test_threads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    with Redis() as server, holdfast.connect(server.url) as client:
        lease = client.lock("x", ttl=TTL).acquire()
        assert lease is not None
        server.pause()
        assert lease.wait_lost(20)
        server.resume()
        with pytest.raises(LockLost) as loss:
            lease.check()
        _is_told_of_the_engine(loss.value, client.url, caplog.records)
        another = client.lock("y", ttl=TTL).acquire()
        assert another is not None
        wait_until(lambda: any(record.levelname == "INFO" for record in caplog.records))
        another.check()


def test_asyncio(caplog: pytest.LogCaptureFixture) -> None:
    async def main(server: Redis) -> None:
        async with holdfast.aio.connect(server.url) as client:
            lease = await client.lock("x", ttl=TTL).acquire()
            assert lease is not None
            server.pause()
            assert await lease.wait_lost(20)
            server.resume()
            with pytest.raises(LockLost) as loss:
                lease.check()
            _is_told_of_the_engine(loss.value, client.url, caplog.records)

    with Redis() as server:
        asyncio.run(main(server))
