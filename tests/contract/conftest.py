"""Every test here is ``async def test_…(world)`` and runs for every engine under every driver."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from contract.engines import DRIVERS, FRESH_URL, Driver
from contract.harness import World, run_in_its_world


@pytest.fixture(params=itertools.product(FRESH_URL, DRIVERS), ids="-".join)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    scheme: str
    driver: Driver
    scheme, driver = request.param
    return World(driver, FRESH_URL[scheme](tmp_path))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_in_its_world(pyfuncitem)
