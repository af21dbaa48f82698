"""The guard between real processes that contend for one SQLite database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from holdfast import fencing
from holdfast.model import Fence
from support import Process, run_python

WRITER = """
    import sqlite3, sys
    from holdfast import fencing
    from holdfast.errors import StaleToken
    from holdfast.model import Fence

    token = int(sys.argv[2])
    fence = Fence("s", token, f"nonce-{token}")
    db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)

    def step(verb):
        if verb == "enforce":
            db.execute("BEGIN")
            fencing.enforce(db, "invoices", fence)
        elif verb == "advance":
            fencing.advance(db, "invoices", fence)
        elif verb == "write":
            db.execute("INSERT INTO invoice VALUES (?)", (token,))
        else:
            db.execute(verb)

    print("ready")
    for line in sys.stdin:
        try:
            step(line.strip())
            print("done")
        except StaleToken as refusal:
            print("refused, newest is", refusal.newest)
"""

INSTALLER = """
    import sqlite3, sys
    from holdfast import fencing

    db = sqlite3.connect(sys.argv[1])
    print("ready")
    input()
    fencing.install(db)
    fencing.advance(db, "invoices", int(sys.argv[2]))
    db.commit()
    print("installed")
"""

COUNTER = """
    import sqlite3, sys
    from holdfast import fencing
    from holdfast.errors import StaleToken

    token = int(sys.argv[2])
    db = sqlite3.connect(sys.argv[1], timeout=60)
    print("ready")
    input()
    try:
        with db:
            fencing.advance(db, "counter", token)
        for _ in range(25):
            (value,) = db.execute("SELECT value FROM counter").fetchone()
            with db:
                fencing.enforce(db, "counter", token)
                db.execute("UPDATE counter SET value = ?", (value + 1,))
                db.execute("INSERT INTO log VALUES (?)", (token,))
        print("finished")
    except StaleToken:
        print("refused")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as db, db:
        fencing.install(db)
        db.execute("CREATE TABLE invoice (token INTEGER)")
    return file


@pytest.fixture
def start(path: Path) -> Iterator[Callable[[int], Process]]:
    """Start a writer with this token."""
    with ExitStack() as stack:

        def start_one(token: int) -> Process:
            writer = stack.enter_context(run_python(WRITER, str(path), str(token)))
            writer.expect("ready")
            return writer

        yield start_one


def tell(writer: Process, *steps: str) -> None:
    for step in steps:
        writer.send(step)
        writer.expect("done")


def written(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as db:
        return [row[0] for row in db.execute("SELECT token FROM invoice ORDER BY rowid")]


def newest(path: Path) -> Fence | None:
    with closing(sqlite3.connect(path)) as db:
        return fencing.newest(db, "invoices")


Start = Callable[[int], Process]


def test_an_old_holder_that_was_paused_is_refused_when_it_wakes(path: Path, start: Start) -> None:
    old, new = start(41), start(42)
    tell(old, "enforce", "write", "COMMIT")
    old.stop()
    tell(new, "advance", "enforce", "write", "COMMIT")
    old.send("enforce")
    old.cont()
    assert old.expect("refused, newest is") == "42"
    assert written(path) == [41, 42]


def test_an_old_holder_that_waits_for_the_new_ones_transaction_is_refused_after_it(
    path: Path, start: Start
) -> None:
    old, new = start(41), start(42)
    tell(new, "enforce", "write")
    old.send("enforce")
    tell(new, "COMMIT")
    assert old.expect("refused, newest is") == "42"
    assert written(path) == [42]


def test_a_write_that_passed_in_time_is_seen_by_the_new_holder(path: Path, start: Start) -> None:
    old, new = start(41), start(42)
    tell(old, "enforce", "write")
    new.send("advance")
    tell(old, "COMMIT")
    new.expect("done")
    assert written(path) == [41]
    assert newest(path) == Fence("s", 42, "nonce-42")


def test_a_new_holder_that_rolls_back_leaves_nothing(path: Path, start: Start) -> None:
    old, new = start(41), start(42)
    tell(new, "enforce", "write", "ROLLBACK")
    assert (written(path), newest(path)) == ([], None)
    tell(old, "enforce", "write", "COMMIT")
    assert written(path) == [41]


def test_a_holder_killed_inside_its_transaction_leaves_nothing(path: Path, start: Start) -> None:
    old, new = start(41), start(42)
    tell(new, "enforce", "write")
    new.kill()
    assert (written(path), newest(path)) == ([], None)
    tell(old, "enforce", "write", "COMMIT")
    assert written(path) == [41]


def start_together(code: str, path: Path, tokens: Sequence[int], stack: ExitStack) -> list[Process]:
    """One process per token, all let go at once."""
    processes = [stack.enter_context(run_python(code, str(path), str(token))) for token in tokens]
    for process in processes:
        process.expect("ready", timeout=60)
    for process in processes:
        process.send()
    return processes


def test_twenty_processes_install_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with ExitStack() as stack:
        # The same token for all: each of them passes.
        for process in start_together(INSTALLER, path, [7] * 20, stack):
            process.expect("installed", timeout=60)
    with closing(sqlite3.connect(path)) as db:
        assert fencing.newest(db, "invoices") == Fence("", 7, "")


def test_no_update_is_lost_between_processes_that_all_believe_to_hold_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "counter.db"
    with closing(sqlite3.connect(path)) as db, db:
        fencing.install(db)
        db.execute("CREATE TABLE counter AS SELECT 0 AS value")
        db.execute("CREATE TABLE log (token INTEGER)")
    with ExitStack() as stack:
        processes = start_together(COUNTER, path, range(1, 7), stack)
        outcomes = [process.expect("", timeout=60) for process in processes]
    with closing(sqlite3.connect(path)) as db:
        log = [row[0] for row in db.execute("SELECT token FROM log ORDER BY rowid")]
        (value,) = db.execute("SELECT value FROM counter").fetchone()
    assert value == len(log)
    assert log == sorted(log), "an older holder wrote after a newer one"
    assert (outcomes[-1], log.count(6)) == ("finished", 25)
