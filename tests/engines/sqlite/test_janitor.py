"""What is of no more use is forgotten, the log does not grow for ever, and tokens never go back."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from engines.sqlite.stores import HOLDER, One, query, record_of, side_files, update
from holdfast.engines.sqlite import janitor
from holdfast.engines.sqlite.database_file import DatabaseFile
from holdfast.engines.sqlite.janitor import clean_up
from holdfast.rules.requests import Busy, SetValue
from holdfast.runtime.clock import wall_us
from support import run_python, wait_until

DAY_US = 86_400_000_000


def sweep(path: Path) -> None:
    update(path, "UPDATE meta SET value = 0 WHERE key = 'swept_at'")
    clean_up(DatabaseFile(str(path), False))


def names(path: Path) -> list[str]:
    return [row[0].decode() for row in query(path, "SELECT name FROM locks ORDER BY name")]


def used(client: One, name: str) -> int:
    attempt, granted = client.hold(name)
    client.release(name, attempt)
    return granted.token


def grow_old(path: Path) -> None:
    update(path, "UPDATE locks SET forget_at = forget_at - ?", 2 * DAY_US)


# --- records --------------------------------------------------------------------------------------


def test_idle_records_are_forgotten_after_a_day(path: Path, client: Callable[[], One]) -> None:
    one = client()
    used(one, "idle")
    sweep(path)
    assert names(path) == ["idle"]
    grow_old(path)
    sweep(path)
    assert names(path) == []


def test_tokens_go_on_where_forgotten_records_ended(
    path: Path, client: Callable[[], One], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the wall clock did meanwhile."""
    one = client()
    last = used(one, "x")
    grow_old(path)
    sweep(path)
    monkeypatch.setattr("holdfast.engines.sqlite.updates.wall_us", lambda: 1_000_000)
    assert used(one, "x") == last + 1
    assert used(one, "another") == last + 1


def test_a_record_that_is_forgotten_while_it_is_wanted(
    path: Path, client: Callable[[], One], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One looked for the floor before the sweep raised it, and writes after that."""
    one = client()
    last = used(one, "x")
    other = client()
    other.hold("y")
    table = other.store._table
    load, loads = table.load, []

    def forgotten_after_the_look(execute: object, key: bytes) -> object:
        loaded = load(execute, key)  # type: ignore[arg-type]  # passed on as it came
        loads.append(loaded.version)
        if len(loads) == 1:
            update(path, "UPDATE meta SET value = ? WHERE key = 'floor'", last + 5)
        return loaded

    update(path, "DELETE FROM locks WHERE name = ?", b"x")
    monkeypatch.setattr(table, "load", forgotten_after_the_look)
    monkeypatch.setattr("holdfast.engines.sqlite.updates.wall_us", lambda: 1_000_000)
    _, granted = other.hold("x")
    assert loads == [-1, -1]
    assert granted.token == last + 6


def test_what_is_held_waited_for_or_carries_a_value_stays(path: Path, client: Callable[[], One]) -> None:
    one = client()
    one.hold("held")
    one.hold("waited for", ttl=0.2)
    one.ask("waited for", one.attempt(wait=True))
    for name, retention in (("lasting value", 3 * 86400.0), ("past value", -1.0)):
        attempt, _ = one.hold(name)
        one.ask(name, SetValue(attempt.nonce, b"v", retention))
        one.release(name, attempt)
    grow_old(path)
    sweep(path)
    assert names(path) == ["held", "lasting value", "waited for"]
    sweep(path)  # They were put off by a day: the second sweep does not even look at them.
    assert query(path, "SELECT min(forget_at) > ? FROM locks", wall_us()) == [(1,)]


def test_what_the_dead_held_is_forgotten(url: str, path: Path, client: Callable[[], One]) -> None:
    with run_python(HOLDER, url, "x", "1000000") as holder:
        holder.expect("held")
        client().hold("y")
        holder.kill()
        grow_old(path)
        sweep(path)
        assert names(path) == ["y"]


def test_a_change_while_it_is_swept_wins(
    path: Path, client: Callable[[], One], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = client()
    used(one, "x")
    grow_old(path)
    forget = janitor._forget

    def taken_first(*arguments: object) -> None:
        one.hold("x")
        forget(*arguments)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(janitor, "_forget", taken_first)
    sweep(path)
    assert names(path) == ["x"]
    assert len(record_of(one, "x").holders) == 1


def test_only_one_sweeps_in_ten_minutes(path: Path, client: Callable[[], One]) -> None:
    one = client()
    used(one, "x")
    grow_old(path)
    clean_up(DatabaseFile(str(path), False))
    assert names(path) == ["x"]


def test_a_wall_clock_that_was_set_back_does_not_put_sweeping_off_for_ever(
    path: Path, client: Callable[[], One]
) -> None:
    one = client()
    used(one, "x")
    grow_old(path)
    update(path, "UPDATE meta SET value = ? WHERE key = 'swept_at'", wall_us() + DAY_US)
    clean_up(DatabaseFile(str(path), False))
    assert names(path) == []


def test_connecting_sweeps_where_it_is_time(path: Path) -> None:
    with One(path) as one:
        used(one, "x")
    grow_old(path)
    update(path, "UPDATE meta SET value = 0 WHERE key = 'swept_at'")
    with One(path) as one:
        one.hold("y")
        wait_until(lambda: names(path) == ["y"])


def test_the_janitor_waits_for_a_writer(path: Path) -> None:
    with One(path) as one:
        used(one, "x")
    grow_old(path)
    update(path, "UPDATE meta SET value = 0 WHERE key = 'swept_at'")
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    writer.execute("BEGIN IMMEDIATE")
    threading.Timer(0.2, writer.execute, ("COMMIT",)).start()
    clean_up(DatabaseFile(str(path), creates_folder=False))
    writer.close()
    assert names(path) == []


# --- clients --------------------------------------------------------------------------------------


def test_the_dead_are_noted_and_forgotten_after_a_day(
    url: str, path: Path, client: Callable[[], One]
) -> None:
    one = client()
    one.hold("y")
    with run_python(HOLDER, url, "x", "60") as holder:
        holder.expect("held")
        holder.kill()
    sweep(path)
    assert query(path, "SELECT count(*) FROM clients WHERE dead > 0") == [(1,)]
    assert {file.stem for file in side_files(path)} == {one.id, "board"}
    update(path, "UPDATE clients SET dead = dead - ? WHERE dead > 0", 2 * DAY_US)
    sweep(path)
    assert query(path, "SELECT id FROM clients") == [(one.id,)]


def test_files_that_belong_to_nobody_are_removed(path: Path, client: Callable[[], One]) -> None:
    one = client()
    one.hold("x")
    folder = path.parent / "locks.db.clients"
    (folder / "0123.alive").touch()
    (folder / "0123.sock").touch()
    sweep(path)
    assert {file.stem for file in side_files(path)} == {one.id, "board"}


def test_a_client_that_is_just_about_to_register_is_left_alone(path: Path, client: Callable[[], One]) -> None:
    one = client()
    one.hold("x")
    update(path, "DELETE FROM clients")
    sweep(path)
    assert {file.stem for file in side_files(path)} == {one.id, "board"}


def test_a_claim_of_one_that_has_no_row_and_no_file_is_void(path: Path, client: Callable[[], One]) -> None:
    """It said goodbye, or died so long ago that its row is forgotten: no claim was made without a row."""
    with One(path) as gone:
        gone.hold("x", ttl=1e6)
    other = client()
    other.hold("x")


# --- the log --------------------------------------------------------------------------------------


def test_the_log_does_not_grow_for_ever(path: Path, client: Callable[[], One]) -> None:
    one = client()
    log = path.parent / "locks.db-wal"
    largest = 0
    for _ in range(12_000):
        used(one, "x")
        largest = max(largest, os.stat(log).st_size)
    # 24,000 changes are nearly 100 MB of log.
    assert largest < 60_000_000


def test_copying_the_log_back_keeps_nobody_from_reading_or_writing(
    path: Path, client: Callable[[], One]
) -> None:
    one = client()
    for number in range(50):
        used(one, f"name-{number}")
    clean_up(DatabaseFile(str(path), False))
    with path.open("rb") as file:
        assert b"name-49" in file.read()
    assert isinstance(one.hold("x"), tuple)
    assert isinstance(one.ask("x", one.attempt()), Busy)


def test_a_long_log_is_begun_anew_and_written_over(
    path: Path, client: Callable[[], One], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "LONG_LOG_PAGES", 10)
    one = client()
    for number in range(50):
        used(one, f"name-{number}")
    size = (path.parent / "locks.db-wal").stat().st_size
    clean_up(DatabaseFile(str(path), False))
    for number in range(20):
        used(one, f"name-{number}")
    assert (path.parent / "locks.db-wal").stat().st_size == size


def test_a_huge_log_is_cut_off(
    path: Path, client: Callable[[], One], monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("LONG_LOG_PAGES", "HUGE_LOG_PAGES"):
        monkeypatch.setattr(janitor, limit, 10)
    one = client()
    for number in range(50):
        used(one, f"name-{number}")
    clean_up(DatabaseFile(str(path), False))
    assert (path.parent / "locks.db-wal").stat().st_size == 0


def test_tidying_what_cannot_be_tidied_is_put_off(path: Path, client: Callable[[], One]) -> None:
    one = client()
    one.hold("x")
    path.unlink()
    one.store._session.janitor.start()
    wait_until(lambda: str(path) not in janitor._running)


# --- interrupts -----------------------------------------------------------------------------------


def interrupted_after_begin(execute: Callable[..., sqlite3.Cursor]) -> Callable[..., sqlite3.Cursor]:
    def interrupted(statement: str, *values: object) -> sqlite3.Cursor:
        cursor = execute(statement, *values)
        if statement.startswith("BEGIN"):
            raise KeyboardInterrupt
        return cursor

    return interrupted


def test_an_interrupt_just_after_its_begin_leaves_no_transaction_open(
    path: Path, client: Callable[[], One]
) -> None:
    used(client(), "x")
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        with pytest.raises(KeyboardInterrupt):
            janitor._forget(interrupted_after_begin(database.execute), [], [])
        assert not database.in_transaction


def test_an_interrupted_registration_leaves_no_transaction_open(
    path: Path, client: Callable[[], One]
) -> None:
    one = client()
    used(one, "x")
    session = one.store._session
    database = session.database.connection
    assert database is not None
    with pytest.raises(KeyboardInterrupt):
        session.register_again(interrupted_after_begin(database.execute))
    assert not database.in_transaction
    used(client(), "y")
