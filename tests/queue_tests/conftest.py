"""A queue on each database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast.queue
from holdfast.queue import Queue
from queue_tests.databases import FRESH_URL, KINDS


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def url(database: str, tmp_path: Path) -> str:
    return FRESH_URL[database](tmp_path)


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with holdfast.queue.connect(url) as opened:
        yield opened
