"""Every test here is ``async def test_…(world)`` and runs for every engine under every driver."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.engines import DRIVERS, Driver, engines_held_to, fresh_url
from contract.harness import World, run_in_its_world


@pytest.hookimpl(
    tryfirst=True
)  # else the order of the parameters, and so a test's id, differ by what is asked
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "driver" in metafunc.fixturenames:
        file = metafunc.module.__name__.rpartition(".")[2]
        metafunc.parametrize("scheme", engines_held_to(file))


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Driver:
    chosen: Driver = request.param
    return chosen


@pytest.fixture
def world(scheme: str, driver: Driver, tmp_path: Path) -> World:
    return World(driver, fresh_url(scheme, tmp_path))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_in_its_world(pyfuncitem)
