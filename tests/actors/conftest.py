"""One test for both drivers and both databases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from actors.worlds import DRIVERS, SCHEMES, World, fresh_url

Story = Callable[[World], Coroutine[Any, Any, None]]


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
def url(scheme: str, tmp_path: Path) -> str:
    return fresh_url(scheme, tmp_path)


@pytest.fixture
def play(url: str, driver: str) -> Callable[[Story], None]:
    """Runs a story in a fresh world."""

    def play(story: Story) -> None:
        async def inside() -> None:
            async with World.opened(driver, url) as world:
                await story(world)

        asyncio.run(inside())

    return play
