"""Fixtures of the command line's tests: real processes on an engine of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import holdfast
from cli.tools import CommandLine


@pytest.fixture
def command_line(sqlite_url: str) -> Iterator[CommandLine]:
    with ExitStack() as stack:
        yield CommandLine(sqlite_url, stack)


@pytest.fixture
def locks(sqlite_url: str) -> Iterator[holdfast.Client]:
    """The same engine through the library, to look at what the command line did."""
    with holdfast.connect(sqlite_url) as client:
        yield client
