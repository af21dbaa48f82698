"""A queue on each database."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast.queue
from holdfast.queue import Queue
from holdfast.queue.calls import extend_many_call
from holdfast.queue.worker import heartbeats
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


@pytest.fixture
def beats(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When workers extended leases."""
    found: list[float] = []

    def noted(jobs: Any) -> Any:
        found.append(time.monotonic())
        return extend_many_call(jobs)

    monkeypatch.setattr(heartbeats, "extend_many_call", noted)
    return found
