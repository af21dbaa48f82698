"""A database of each test's own, and clients of it that are closed in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from engines.sqlite.stores import One


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def client(path: Path) -> Iterator[Callable[[], One]]:
    """Makes clients of the test's database."""
    with ExitStack() as clients:
        yield lambda: clients.enter_context(One(path))
