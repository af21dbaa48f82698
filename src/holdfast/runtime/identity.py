"""Who we are: ids of clients, names of attempts, labels of owners."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from typing import Final

__all__ = ["attempt_names", "new_client_id", "owner_prefix"]

RANDOM_BYTES: Final = 16


def new_client_id() -> str:
    return secrets.token_hex(8)


def attempt_names(client: str) -> Callable[[], str]:
    """Names that nobody else will ever use, nor guess: the client's own id and 128 random bits.

    The client's id is public. The random part is what no other client can know unless the record tells it.
    """
    start, random = client + "-", os.urandom
    return lambda: start + random(RANDOM_BYTES).hex()


def owner_prefix() -> str:
    """``host/pid/``; the thread's or task's name is added by who acquires."""
    host = socket.gethostname().replace("/", "_") or "localhost"
    return f"{host}/{os.getpid()}/"
