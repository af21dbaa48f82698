"""Every test here is ``async def test_…(world)`` and runs for every engine under every driver."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from pathlib import Path

import pytest

from contract.engines import DRIVERS, FRESH_URL, Driver
from contract.harness import World


@pytest.fixture(params=itertools.product(FRESH_URL, DRIVERS), ids="-".join)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    scheme: str
    driver: Driver
    scheme, driver = request.param
    return World(driver, FRESH_URL[scheme](tmp_path))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function in a loop of its own, inside its world."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    world = arguments["world"]
    assert isinstance(world, World)

    async def run() -> None:
        async with world:
            await test(**arguments)

    asyncio.run(run())
    return True
