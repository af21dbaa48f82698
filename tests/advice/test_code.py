"""The code of every leaf runs, on every system that it is offered for."""

from __future__ import annotations

import contextlib
import io
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from fencing.sql_clients import new_database
from holdfast import advice
from holdfast.advice import Leaf
from support.servers import (
    shared_etcd,
    shared_postgresql,
    shared_redis,
    shared_redlock,
    shared_zookeeper,
)

STOCK = (
    "CREATE TABLE stock (item VARCHAR(20) PRIMARY KEY, quantity INTEGER, version INTEGER)",
    "INSERT INTO stock VALUES ('lamp', 3, 1)",
)

URLS: Mapping[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder}/locks.db",
    "redis": lambda _: shared_redis().url,
    "postgresql": lambda _: shared_postgresql().url,
    "etcd": lambda _: f"etcd://{shared_etcd().address}",
    "zookeeper": lambda _: f"zookeeper://{shared_zookeeper().address}",
    "redlock": lambda _: f"redlock://{shared_redlock().addresses}?node_timeout=1s",
}

ELSEWHERE: Mapping[str, tuple[str, str, Callable[[], str]]] = {
    "lock-and-redis-guard": ("redis", "redis://localhost:6379/0", lambda: shared_redis().url),
    "lock-and-etcd-guard": ("etcd", "localhost:2379", lambda: shared_etcd().address),
    "lock-and-zookeeper-guard": ("zookeeper", '"localhost:2181"', lambda: repr(shared_zookeeper().address)),
}
"""What else the code of a leaf connects to."""


def each() -> list[ParameterSet]:
    found = []
    for leaf in advice.LEAVES:
        for system in leaf.systems:
            engines = {system, *(ELSEWHERE[leaf.key][:1] if leaf.key in ELSEWHERE else ())}
            marks = [pytest.mark.engine(*engines)]
            found.append(pytest.param(leaf, system, id=f"{leaf.key}-{system}", marks=marks))
    return found


@pytest.mark.realtime
@pytest.mark.parametrize(("leaf", "system"), each())
def test_the_code_runs(leaf: Leaf, system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = leaf.code(system)
    example = advice.SYSTEMS[system]
    if leaf.uses_database or leaf.opens:
        if system == "postgresql":
            database = new_database("postgresql")
            url = f"postgresql://postgres@{database.host}:{database.port}/{database.name}"
            connection = database.connect()
        else:
            url = f"{tmp_path}/app.db"
            connection = sqlite3.connect(url)
            code = code.replace("/var/lib/app/app.db", url)
        for statement in STOCK:
            connection.execute(statement)
        connection.commit()
        connection.close()
        code = code.replace('psycopg.connect("postgresql://localhost/app")', f"psycopg.connect({url!r})")
        if leaf.opens and system == "postgresql":
            code = code.replace(
                leaf.opens.replace("{url}", example.database_url), leaf.opens.replace("{url}", url)
            )
    if leaf.uses_locks:
        code = code.replace(example.url, URLS[system](tmp_path))
    if leaf.key in ELSEWHERE:
        _, written, real = ELSEWHERE[leaf.key]
        # A resource of its own: a guard refuses tokens of another engine than it has seen.
        code = code.replace(written, real()).replace('"totals"', f'"totals-{leaf.key}-{system}"')
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": leaf.key}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, f"{leaf.key} on {system}", "exec"), names)  # noqa: S102 - our own code
    finally:
        for opened in ("locks", "db", "queue", "store"):
            if opened in names:
                names[opened].close()  # type: ignore[attr-defined]  # a client, a connection or a store
    for claim in CLAIMS.get(leaf.key, ()):
        assert claim in printed.getvalue()


CLAIMS = {
    "unique-key": ("done now",),
    "single-statement": ("sold",),
    "idempotent-transaction": ("{'sold': 'lamp'}",),
    "idempotent": ("charging\n{'order': 4711, 'charged': 10}\n{'order': 4711, 'charged': 10}",),
    "cell": ("(b'x",),
    "events": ("balance 1200",),
    "queue": ("packed order 4711",),
    "partitions": ("customer-7 is ours, with token",),
    "actor": ("'balance': 100",),
    "job": ("done {'sent': 12}",),
    "election": ("leading, in term",),
    "multilock": ("{'account-2': ",),
    "one-by-one": ("both are held",),
}
"""What must have been printed."""
