"""A database of each test's own, and clients of it that are closed in the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from engines.sqlite.patience import LONG_SECONDS, TIMES
from engines.sqlite.stores import Clock, One


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


class Nowhere(dict[str, object]):
    """Knows of no client, whichever registers."""

    def __setitem__(self, client: str, registration: object) -> None:
        pass


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clients of this test see one another as those of other processes do: by their rows and files."""
    for module in ("session", "store"):
        monkeypatch.setattr(f"holdfast.engines.sqlite.{module}.LOCAL_CLIENTS", Nowhere())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clients of this test tell the time by it, so that none passes but what the test says."""
    clock = Clock()
    for module in ("janitor", "renewal", "session", "store", "updates"):
        monkeypatch.setattr(f"holdfast.engines.sqlite.{module}.boottime", clock)
    return clock


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits in this process gets nothing unless it is woken."""
    for each in TIMES:
        monkeypatch.setattr(each, LONG_SECONDS)
