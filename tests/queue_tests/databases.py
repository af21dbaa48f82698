"""The databases that the queue is tested on, each fresh: a schema or a file of its own."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

from support.servers import shared_pgbouncer, shared_postgresql

__all__ = ["FRESH_URL", "KINDS"]


def _schema() -> str:
    return f"?schema=queue_{secrets.token_hex(6)}"


FRESH_URL: Final[dict[str, Callable[[Path], str]]] = {
    "postgresql": lambda folder: shared_postgresql().url + _schema(),
    "pgbouncer": lambda folder: shared_pgbouncer().url + _schema(),
    "sqlite": lambda folder: f"sqlite:///{folder / 'queue.db'}?synchronous=normal",
}
KINDS: Final = tuple(FRESH_URL)
