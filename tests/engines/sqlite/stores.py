"""Stores of the embedded engine without a driver, and the children that the tests here start."""

from __future__ import annotations

import itertools
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast.engine_api import AdapterContext
from holdfast.engines.local import StoreBusyError
from holdfast.engines.sqlite.database_file import DatabaseFile
from holdfast.engines.sqlite.store import SqliteStore
from holdfast.rules.record import Record
from holdfast.rules.requests import Acquire, Granted, Handoff, Inspect, Release, Reply, Request, Snapshot
from holdfast.runtime.clock import boottime

__all__ = ["HOLDER", "PATIENT", "Clock", "One", "query", "record_of", "side_files", "update"]

HOLDER = """
    import sys, holdfast

    locks = holdfast.connect(sys.argv[1])
    lease = locks.lock(sys.argv[2], ttl=float(sys.argv[3])).acquire()
    print("held", lease.token)
    for line in sys.stdin:
        if line.strip() == "release":
            lease.release()
            print("released")
        else:
            exec(line)
            print("done")
"""
"""A process that holds a lock: HOLDER, url, name, ttl. Other lines than ``release`` are run as code."""

PATIENT = f"""
    from engines.sqlite.patience import be_patient

    be_patient()
{HOLDER}
"""
"""The same; while it waits it gets nothing unless it is woken."""


class Clock:
    """A clock that is set by the test; but no two readings of it are the same."""

    def __init__(self) -> None:
        self._began = boottime()
        self._readings = itertools.count(1)

    def __call__(self) -> float:
        return self._began + next(self._readings) * 1e-6

    def passes(self, seconds: float) -> None:
        self._began += seconds


class One:
    """One client: its store, and what was posted to it."""

    def __init__(self, path: Path, namespace: str = "holdfast") -> None:
        self.id = secrets.token_hex(8)
        self.posted: list[str] = []
        self.handed: dict[str, Handoff | None] = {}
        """What the last wake-up of a nonce brought along."""
        self.read_by: dict[str, str] = {}
        """By which thread."""
        context = AdapterContext(self.id, self._post, lambda: None, 5.0)
        self.store = SqliteStore(DatabaseFile(str(path), False), namespace, context)
        self._count = itertools.count(1)

    def _post(self, nonce: str, handed: Handoff | None = None) -> None:
        self.handed[nonce] = handed
        self.read_by[nonce] = threading.current_thread().name
        self.posted.append(nonce)

    def __enter__(self) -> One:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def ask(self, name: str, request: Request) -> Reply:
        """As an adapter does it: busy is tried again."""
        while True:
            try:
                return self.store.apply(name, request)
            except StoreBusyError:
                continue

    def renew_batch(self, *steps: tuple[str, Request]) -> list[Reply]:
        while True:
            try:
                return self.store.renew_batch(steps)
            except StoreBusyError:
                continue

    def attempt(self, ttl: float = 30.0, wait: bool = False, **more: Any) -> Acquire:
        nonce = f"{self.id}-{next(self._count):x}"
        return Acquire(nonce, self.id, f"test/1/{self.id}", "lock", "exclusive", ttl, wait, **more)

    def hold(self, name: str, ttl: float = 30.0, **more: Any) -> tuple[Acquire, Granted]:
        attempt = self.attempt(ttl, **more)
        reply = self.ask(name, attempt)
        assert isinstance(reply, Granted), reply
        return attempt, reply

    def release(self, name: str, attempt: Acquire) -> Reply:
        return self.ask(name, Release(attempt.nonce))


def record_of(client: One, name: str) -> Record:
    told = client.ask(name, Inspect())
    assert isinstance(told, Snapshot)
    return told.record


def query(path: Path, statement: str, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(path, timeout=10)) as database:
        return database.execute(statement, values).fetchall()


def update(path: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(path, timeout=10)) as database, database:
        database.execute(statement, values)


def side_files(path: Path) -> Iterator[Path]:
    return (path.parent / f"{path.name}.clients").iterdir()
