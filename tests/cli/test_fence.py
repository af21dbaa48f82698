"""``holdfast fence``: the guards in a database of the user's."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import holdfast
from cli.tools import CommandLine
from fencing.sql_clients import DATABASES, Database, new_database
from holdfast import fencing
from holdfast.cli.exits import Status


@pytest.fixture
def line(tmp_path: Path) -> Iterator[CommandLine]:
    with ExitStack() as stack:
        yield CommandLine(f"sqlite:///{tmp_path}/locks.db", stack)


def url_of(database: Database) -> str:
    if database.kind == "sqlite":
        with closing(sqlite3.connect(database.name)) as db:
            db.execute("PRAGMA user_version = 1")  # the file is there
        return f"sqlite:///{database.name}"
    user = "postgres" if database.kind == "postgresql" else "holdfast"
    return f"{database.kind}://{user}@{database.host}:{database.port}/{database.name}"


@pytest.mark.parametrize("kind", DATABASES)
def test_the_whole_of_it_on_each_database(line: CommandLine, kind: str) -> None:
    database = new_database(kind)
    where = {"HOLDFAST_DATABASE_URL": url_of(database)}
    process = line.finish("fence", "show", env=where)
    assert process.returncode == Status.USAGE
    assert "fencing.install" in process.stderr
    for _ in range(2):
        line.start("fence", "install", env=where).succeed()
    run = line.finish(
        "run", "invoices", "--", sys.executable, "-m", "holdfast", "fence", "advance", "invoices", env=where
    )
    assert run.returncode == 0, run.stderr
    (shown,) = json.loads(line.start("fence", "show", "invoices", "--json", env=where).succeed())
    assert shown["resource"] == "invoices"
    assert shown["source"].endswith("/invoices")
    assert shown["nonce"]
    assert f"knows token {shown['token']}" in run.stdout
    stale = line.finish("fence", "advance", "invoices", "--token", "7", env=where)
    assert stale.returncode == Status.NOTHING_DONE
    assert f"token 7 is too old for 'invoices': its guard has seen token {shown['token']}" in stale.stderr
    assert str(shown["token"]) in line.start("fence", "show", env=where).succeed()

    with closing(database.connect()) as db:
        db.cursor().execute("CREATE TABLE invoice (id INTEGER)")
        db.commit()
        line.start("fence", "protect", "invoice", "invoices", env=where).succeed()
        with pytest.raises(Exception, match=r"protected|no such function"):
            db.cursor().execute("INSERT INTO invoice VALUES (1)")
        db.rollback()
        line.start("fence", "unprotect", "invoice", env=where).succeed()
        db.cursor().execute("SELECT * FROM invoice")  # SQLite: a refused connection looks at the schema again
        db.cursor().execute("INSERT INTO invoice VALUES (1)")
        db.rollback()
        assert "removed 0" in line.start("fence", "prune", "--older-than", "90d", env=where).succeed()


def test_moving_to_another_engine_takes_the_lock_there(line: CommandLine, tmp_path: Path) -> None:
    database = new_database("sqlite")
    where = {"HOLDFAST_DATABASE_URL": url_of(database)}
    target = f"sqlite:///{tmp_path}/other.db"
    with closing(database.connect()) as db, db:
        fencing.install(db)
        fencing.advance(db, "invoices", holdfast.Fence("old", 41, "n"))
    said = line.start("fence", "move", "invoices", "--to", target, env=where).succeed()
    with closing(database.connect()) as db:
        newest = fencing.newest(db, "invoices")
        assert newest is not None
        assert f"{newest.source!r}; its newest is {newest.token}" in said
        with pytest.raises(holdfast.StaleToken), db:
            fencing.advance(db, "invoices", holdfast.Fence("old", 42, "n"))
        with holdfast.connect(target) as client, client.lock("invoices") as lease, db:
            fencing.advance(db, "invoices", lease)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show"], "which database? write --url"),
        (["show", "--url", "oracle://host/x"], "there is no guard for oracle"),
        (["show", "--url", "sqlite:////nowhere/shop.db"], "there is no database '/nowhere/shop.db'"),
        (["show", "--url", "sqlite://host/shop.db"], "three slashes"),
        (["show", "--url", "mariadb://host"], "which database of that server"),
        (["show", "--url", "mariadb://host/x?tls=1"], "has no option 'tls'"),
        (["show", "--url", "mysql://host:port/x"], "cannot be read"),
        (["advance", "x", "--url", "sqlite:///x.db"], "HOLDFAST_FENCE is not set"),
        (["advance", "x", "--token", "-1"], "out of range"),
        (["move", "x"], "--to"),
        (["prune"], "--older-than"),
        (["protect", "x"], "RESOURCE"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_what_is_refused(line: CommandLine, arguments: list[str], said: str) -> None:
    process = line.finish("fence", *arguments, env={"HOLDFAST_DATABASE_URL": None, "HOLDFAST_FENCE": None})
    assert process.returncode == Status.USAGE
    assert said in process.stderr


def test_a_database_that_cannot_be_reached_keeps_its_password(line: CommandLine) -> None:
    for scheme in ("postgresql", "mariadb"):
        url = f"{scheme}://user:Geheim%21nis@127.0.0.1:1/shop"
        process = line.finish("fence", "show", env={"HOLDFAST_DATABASE_URL": url})
        assert process.returncode == Status.UNAVAILABLE
        assert "the database answered" in process.stderr
        assert "Geheim" not in process.stderr + process.stdout
