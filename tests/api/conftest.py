"""``world``: one engine that fails on demand, under each driver; for ``async def`` tests."""

from __future__ import annotations

import pytest

from api.spy import SpyWorld
from contract.engines import DRIVERS
from contract.harness import run_in_its_world


@pytest.fixture(params=DRIVERS)
def world(request: pytest.FixtureRequest) -> SpyWorld:
    return SpyWorld(request.param)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_in_its_world(pyfuncitem)
