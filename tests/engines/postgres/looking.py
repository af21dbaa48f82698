"""A look inside a client, where nothing outside tells."""

from __future__ import annotations

from holdfast import Client
from holdfast.engines.postgres.asyncio import PostgresAsyncio
from holdfast.engines.postgres.threads import PostgresThreads

__all__ = ["hears"]


def hears(client: Client) -> bool:
    """Whether notifications reach it."""
    adapter: object = client._driver.adapter
    assert isinstance(adapter, PostgresThreads | PostgresAsyncio)
    return adapter._ears.hears
