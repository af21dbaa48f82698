"""A schema of its own for each test, on the server that all tests of the process share."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from cli.tools import CommandLine
from contract.engines import DRIVERS, Driver
from contract.harness import World, run_in_its_world
from support.servers import shared_postgresql


@pytest.fixture
def schema() -> str:
    """The name of a schema that does not exist yet."""
    return f"test_{secrets.token_hex(6)}"


@pytest.fixture
def url(schema: str) -> str:
    """The shared server, with that schema."""
    return f"{shared_postgresql().url}?schema={schema}"


@pytest.fixture
def command_line(url: str) -> Iterator[CommandLine]:
    with ExitStack() as stack:
        yield CommandLine(url, stack)


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Driver:
    chosen: Driver = request.param
    return chosen


@pytest.fixture
def world(driver: Driver, url: str) -> World:
    """For ``async def`` tests, which run under each driver."""
    return World(driver, url)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_in_its_world(pyfuncitem)
