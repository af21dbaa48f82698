"""Every script that a test leaves under way is ended with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from protocols.driver import World


@pytest.fixture(autouse=True)
def _worlds_end() -> Iterator[None]:
    yield
    while World.alive:
        World.alive.pop().end()
