"""What a claim costs the database: index scans at every size of the table, and the same number of pages."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast.queue
from holdfast.fencing.connections import pyformat
from holdfast.queue import NewJob, Queue
from holdfast.queue.database import PostgresDatabase
from queue_tests.databases import FRESH_URL

FINISHED = (0, 1_000, 30_000)
STATEMENTS = ("claim", "heads_of_given", "heads_of_all", "next_event", "due", "expired", "finish", "promote")
VALUES = {
    "namespace": "holdfast",
    "kind": "a",
    "key": "k",
    "kinds": json.dumps(["a", "b"]),
    "count": 1,
    "least_priority": -(2**31),
    "may_be_limited": 0,
    "lease": 30.0,
    "owner": "me",
    "id": 1,
    "token": 1,
    "result": None,
}


@pytest.fixture(params=["postgresql", "pgbouncer"])
def server_queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Queue]:
    with holdfast.queue.connect(FRESH_URL[request.param](tmp_path)) as opened:
        opened.install()
        yield opened


def fill(connection: Any, schema: str, finished: int) -> None:
    columns = (
        "namespace, kind, lane, lane_rank, uniqueness, holds_key, state, priority, run_at, payload,"
        " max_attempts, backoff_first, backoff_maximum, created_at, ended_at"
    )
    connection.execute(
        f"INSERT INTO {schema}.queue_jobs ({columns})"
        " SELECT 'holdfast', 'a', 0, 0, 0, 0, 'finished', 0, n, '{}', 1, 1, 1, n, n"
        f" FROM generate_series(1, {finished}) n"
    )
    connection.execute(f"ANALYZE {schema}.queue_jobs")


@pytest.mark.engine("postgresql")
def test_index_scans_whatever_the_size(server_queue: Queue) -> None:
    queue = server_queue
    texts = queue._store.database.texts
    pages: list[int] = []
    for finished in FINISHED:
        queue.put_many([NewJob("a", n) for n in range(50)])
        with queue._store.connection() as (connection, _):
            fill(connection, texts.schema, finished)
            for name in STATEMENTS:
                text = getattr(texts, name)
                used = set(re.findall(r"(?<![:\w]):([a-z]\w*)", text))
                plan = explained(connection, text, {key: VALUES[key] for key in used})
                if finished >= 1_000 or is_direct(queue):
                    assert "Seq Scan on queue_jobs" not in plan, (name, finished, plan)
            with connection.transaction(force_rollback=True):
                used = set(re.findall(r"(?<![:\w]):([a-z]\w*)", texts.claim))
                plan = explained(
                    connection, texts.claim, {key: VALUES[key] for key in used}, "ANALYZE, BUFFERS"
                )
                assert "queue_jobs_ready" in plan
                pages.append(int(re.findall(r"Buffers: shared hit=(\d+)", plan)[0]))
    assert max(pages) <= 1.5 * min(pages) + 6, pages


def is_direct(queue: Queue) -> bool:
    assert isinstance(queue._store.database, PostgresDatabase)
    with queue._store.connection() as (connection, _):
        return connection.prepare_threshold is not None


def explained(
    connection: psycopg.Connection[Any], text: str, values: dict[str, Any], options: str = ""
) -> str:
    command = f"EXPLAIN ({options or 'COSTS OFF'}) "
    cursor: Any = connection.cursor()
    return "\n".join(row[0] for row in cursor.execute(command + pyformat(text), values).fetchall())


def test_index_scans_in_a_file(tmp_path: Path) -> None:
    with holdfast.queue.connect(f"sqlite:///{tmp_path / 'queue.db'}") as queue:
        queue.put("a")
        texts = queue._store.database.texts
    with closing(sqlite3.connect(tmp_path / "queue.db")) as connection:
        for name in STATEMENTS:
            rows = connection.execute("EXPLAIN QUERY PLAN " + getattr(texts, name), VALUES).fetchall()
            steps = [row[3] for row in rows]
            scanned = [step for step in steps if re.match(r"SCAN (holdfast_queue_jobs|j|r|b)\b", step)]
            assert not scanned, (name, steps)
