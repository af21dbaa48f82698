"""Identities: ids of clients, names of attempts, labels of owners."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Final

__all__ = ["attempt_names", "new_client_id", "owner_prefix"]

RANDOM_BYTES: Final = 16


def new_client_id() -> str:
    return os.urandom(8).hex()


def attempt_names(client: str) -> Callable[[], str]:
    """Unique names that cannot be guessed: the client's id and 128 random bits.

    The client's id is public. Another client can know the random part only from the record.
    """
    start, random = client + "-", os.urandom
    return lambda: start + random(RANDOM_BYTES).hex()


def owner_prefix() -> str:
    """``host/pid/``. The acquiring thread or task appends its name."""
    host = socket.gethostname().replace("/", "_") or "localhost"
    return f"{host}/{os.getpid()}/"
