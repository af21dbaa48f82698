"""Tests that ask adapters run for both drivers."""

from __future__ import annotations

import pytest

from engines.redis.adapters import Driver


@pytest.fixture(params=["threads", "asyncio"])
def driver(request: pytest.FixtureRequest) -> Driver:
    chosen: Driver = request.param
    return chosen
