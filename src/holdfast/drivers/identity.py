"""Who we are: ids of clients, names of attempts, labels of owners."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
from collections.abc import Callable

__all__ = ["attempt_names", "new_client_id", "owner_prefix"]


def new_client_id() -> str:
    return secrets.token_hex(8)


def attempt_names(client: str) -> Callable[[], str]:
    """Names that nobody else will ever use: the client's own id and a count."""
    count = itertools.count(1)
    return lambda: f"{client}-{next(count):x}"


def owner_prefix() -> str:
    """``host/pid/``; the thread's or task's name is added by who acquires."""
    host = socket.gethostname().replace("/", "_") or "localhost"
    return f"{host}/{os.getpid()}/"
