"""For ``async def`` tests, which run under each driver, in a ``world`` of nodes that they may harm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contract.engines import DRIVERS, Driver
from contract.harness import World, run_in_its_world
from faults.redlock_nodes import Nodes, nodes


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Driver:
    chosen: Driver = request.param
    return chosen


@pytest.fixture
def trio() -> Iterator[Nodes]:
    with nodes(3) as trio:
        yield trio


@pytest.fixture
def world(driver: Driver, trio: Nodes) -> World:
    return World(driver, trio.url())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_in_its_world(pyfuncitem)
