"""The databases that the queue is tested on, each fresh: a schema or a file of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from support.servers import shared_pgbouncer, shared_postgresql

__all__ = ["FRESH_URL", "KINDS", "SERVER_MARK"]


def _schema() -> str:
    return f"?schema=queue_{secrets.token_hex(6)}"


FRESH_URL: Final[dict[str, Callable[[Path], str]]] = {
    "postgresql": lambda folder: shared_postgresql().url + _schema(),
    "pgbouncer": lambda folder: shared_pgbouncer().url + _schema(),
    "sqlite": lambda folder: f"sqlite:///{folder / 'queue.db'}?synchronous=normal",
}
SERVER_MARK: Final = pytest.mark.engine("postgresql")
KINDS: Final = [
    pytest.param("postgresql", marks=SERVER_MARK),
    pytest.param("pgbouncer", marks=SERVER_MARK),
    pytest.param("sqlite"),
]
