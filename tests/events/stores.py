"""Stores of events for tests: a database of its own for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fencing.sql_clients import Database, new_database
from holdfast import events
from holdfast.events import EventStore

__all__ = ["KINDS", "POSTGRESQL", "new_store", "open_store", "url_of"]

POSTGRESQL = pytest.mark.engine("postgresql")
KINDS = ["sqlite", pytest.param("postgresql", marks=POSTGRESQL)]


def url_of(database: Database) -> str:
    if database.kind == "sqlite":
        return f"sqlite:///{database.name}"
    return f"postgresql://postgres@{database.host}:{database.port}/{database.name}"


@contextmanager
def open_store(database: Database) -> Iterator[EventStore]:
    with events.connect(url_of(database)) as store:
        yield store


@contextmanager
def new_store(kind: str) -> Iterator[EventStore]:
    with open_store(new_database(kind)) as store:
        yield store
