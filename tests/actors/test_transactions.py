"""Messages sent in a transaction of the user's: they are there with what else it writes, or not at all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast.queue
from actors.worlds import SCHEMES, fresh_url
from holdfast import actors
from holdfast.errors import InvalidArgument
from queue_tests.test_processes import path_in, server_in


class Notes:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def connection_to(url: str) -> Any:
    return sqlite3.connect(path_in(url)) if url.startswith("sqlite") else psycopg.connect(server_in(url))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_message_commits_with_the_transaction_it_is_sent_in(scheme: str, tmp_path: Path) -> None:
    url = fresh_url(scheme, tmp_path)
    with holdfast.queue.connect(url) as queue:
        system = actors.System(None, queue)
        system.actor("notes")(Notes)
        with closing(connection_to(url)) as db:
            for text, ends in (("kept", db.commit), ("dropped", db.rollback)):
                queue.install()
                system.run(until_idle=True)  # makes the tables
                db.execute("BEGIN" if scheme == "sqlite" else "SELECT 1")
                system.tell("notes", "x", "note", text=text, connection=db)
                system.tell("notes", "x", "note", text=f"{text} once", id=text, connection=db)
                system.tell("notes", "x", "note", text=f"{text} twice", id=text, connection=db)
                ends()
        system.run(until_idle=True)
        assert system.state("notes", "x") == {"notes": ["kept", "kept once"]}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_connection_without_a_transaction_is_refused(scheme: str, tmp_path: Path) -> None:
    url = fresh_url(scheme, tmp_path)
    with holdfast.queue.connect(url) as queue:
        system = actors.System(None, queue)
        if scheme == "sqlite":
            db: Any = sqlite3.connect(path_in(url), isolation_level=None)
        else:
            db = psycopg.connect(server_in(url), autocommit=True)
        with closing(db), pytest.raises(InvalidArgument, match="autocommit"):
            system.tell("notes", "x", "note", text="", connection=db)
        assert queue.jobs() == []
