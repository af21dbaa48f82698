"""A schema of its own for each test, on the server that all tests of the process share."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from cli.tools import CommandLine
from support.servers import shared_postgresql


@pytest.fixture
def schema() -> str:
    """One that nobody has made yet."""
    return f"test_{secrets.token_hex(6)}"


@pytest.fixture
def url(schema: str) -> str:
    """The shared server, with that schema."""
    return f"{shared_postgresql().url}?schema={schema}"


@pytest.fixture
def command_line(url: str) -> Iterator[CommandLine]:
    with ExitStack() as stack:
        yield CommandLine(url, stack)
