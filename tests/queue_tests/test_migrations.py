"""The versions of the schema: upgrades under running clients, and roles that may not make tables."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import holdfast.queue
from holdfast.errors import EngineUnavailable
from holdfast.queue import Queue, migrations
from queue_tests.databases import FRESH_URL
from queue_tests.test_processes import server_in

NEXT = """
-- The version after the newest one.
ALTER TABLE {jobs} ADD COLUMN note text;
CREATE INDEX {index} ON {jobs} (note);
"""


@contextmanager
def next_release(database: str) -> Iterator[None]:
    """What is connected meanwhile is of the next release."""
    names = (
        {"jobs": "holdfast_queue_jobs", "index": "holdfast_queue_jobs_note"}
        if database == "sqlite"
        else {"jobs": "@schema@.queue_jobs", "index": "queue_jobs_note"}
    )
    scripts, newest = migrations._scripts, migrations.VERSION + 1
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(migrations, "VERSION", newest)
        patched.setattr(
            migrations, "_scripts", lambda dialect: (*scripts(dialect), (newest, NEXT.format(**names)))
        )
        yield


def test_an_upgrade_under_a_running_queue(database: str, url: str, queue: Queue) -> None:
    kept = queue.put("a", "of the old release")
    with next_release(database), holdfast.queue.connect(url) as newer:
        assert newer.install()
        assert not newer.install()
        (job,) = newer.claim("a")
        assert job.id == kept
        queue.put("a", "of the old release")
        newer.put("a", "of the new one")
        job.finish()
    with holdfast.queue.connect(url) as older:
        assert not older.install()  # a newer schema stays as it is
        assert len(older.claim("a", limit=9)) == 2


@pytest.mark.engine("postgresql")
def test_a_role_that_may_not_make_tables(tmp_path: Path) -> None:
    url = FRESH_URL["postgresql"](tmp_path)
    role, schema = f"worker_{secrets.token_hex(4)}", url.partition("schema=")[2]
    own_url = url.replace("//postgres@", f"//{role}@")
    with psycopg.connect(server_in(url), autocommit=True) as admin:

        def execute(statement: str) -> list[tuple[str]]:
            cursor = admin.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

        execute(f"CREATE ROLE {role} LOGIN")
        with (
            holdfast.queue.connect(own_url) as queue,
            pytest.raises(EngineUnavailable, match=r"holdfast\.queue\.script\(url\)"),
        ):
            queue.put("a")
        execute(holdfast.queue.script(url))
        execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        tables = execute(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'")
        for (table,) in tables:
            assert table.startswith("queue_")
            execute(f"GRANT ALL ON {schema}.{table} TO {role}")
    with holdfast.queue.connect(own_url) as queue:
        queue.put("a", key="k", ordered=True)
        queue.schedule("s", "a", every=60)
        queue.limit("a", concurrency=1)
        (job,) = queue.claim("a")
        with job.transaction():
            pass
        assert queue.prune(0) == 1
