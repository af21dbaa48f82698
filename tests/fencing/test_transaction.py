"""What ``enforce`` refuses because it can see it, and what ``fencing.transaction`` sees besides."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import fencing
from holdfast.core.tokens import MAX_AHEAD_US, is_plausible
from holdfast.errors import HoldfastError, InvalidArgument, StaleToken
from holdfast.model import Fence
from holdfast.runtime.clock import wall_us


@dataclass(frozen=True)
class FakeLease:
    fence: Fence
    name: str = "invoices"
    mode: str = "exclusive"


def lease(token: int) -> FakeLease:
    return FakeLease(Fence("s", token, f"n{token}"))


MODES: list[dict[str, Any]] = [{}, {"isolation_level": None}, {"isolation_level": "EXCLUSIVE"}]
if sys.version_info >= (3, 12):
    MODES += [{"autocommit": True}, {"autocommit": False}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as db, db:
        fencing.install(db)
        db.execute("CREATE TABLE invoice (text TEXT)")
    return file


@pytest.fixture(params=MODES, ids=str)
def db(path: Path, request: pytest.FixtureRequest) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, **request.param)) as connection:
        yield connection


def invoices(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as other:
        return [row[0] for row in other.execute("SELECT text FROM invoice")]


def add(db: sqlite3.Connection, text: str) -> None:
    db.execute("INSERT INTO invoice VALUES (?)", (text,))


def test_a_guarded_transaction_commits_what_is_written_within(path: Path, db: sqlite3.Connection) -> None:
    with fencing.transaction(db, lease(41)):
        add(db, "x")
    with fencing.transaction(db, lease(41)):
        add(db, "y")
    assert invoices(path) == ["x", "y"]
    assert fencing.newest(db, "invoices") == Fence("s", 41, "n41")


def test_a_stale_holder_is_refused_before_anything_within_is_run(path: Path, db: sqlite3.Connection) -> None:
    with fencing.transaction(db, lease(42)):
        add(db, "new")
    with pytest.raises(StaleToken), fencing.transaction(db, lease(41)):
        raise AssertionError("it was run")
    with closing(sqlite3.connect(path, timeout=0)) as other, other:
        add(other, "the write lock is free")


def fail_after(step: Callable[[], None]) -> None:
    step()
    raise KeyError


def test_an_exception_within_rolls_back(path: Path, db: sqlite3.Connection) -> None:
    with pytest.raises(KeyError), fencing.transaction(db, lease(42)):
        fail_after(lambda: add(db, "x"))
    assert invoices(path) == []
    with fencing.transaction(db, lease(41)):
        add(db, "42 left nothing")


def test_a_commit_within_is_noticed_and_what_follows_it_is_not_kept(
    path: Path, db: sqlite3.Connection
) -> None:
    def write_twice() -> None:
        add(db, "guarded")
        db.execute("COMMIT")
        db.execute("BEGIN")
        add(db, "not guarded")

    with pytest.raises(HoldfastError, match="rolled back within"), fencing.transaction(db, lease(42)):
        write_twice()
    assert invoices(path) == ["guarded"]


def test_so_is_executescript_which_commits_first(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        with pytest.raises(HoldfastError, match="within"), fencing.transaction(db, lease(42)):
            db.executescript("BEGIN; INSERT INTO invoice VALUES ('not guarded');")
        assert invoices(path) == []


def test_a_savepoint_rolled_back_within_does_not_undo_the_guard(path: Path, db: sqlite3.Connection) -> None:
    with fencing.transaction(db, lease(42)):
        db.execute("SAVEPOINT a")
        add(db, "undone")
        db.execute("ROLLBACK TO a")
        add(db, "kept")
    assert invoices(path) == ["kept"]
    with pytest.raises(StaleToken), fencing.transaction(db, lease(41)):
        pass


def test_no_transaction_may_be_open(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        add(db, "the user's own")
        with pytest.raises(InvalidArgument, match="is open"), fencing.transaction(db, lease(42)):
            pass
        db.commit()
    assert invoices(path) == ["the user's own"]


@pytest.mark.realtime
def test_the_resource_is_the_locks_name_or_given(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, ExitStack() as stack:
        locks = stack.enter_context(holdfast.connect("memory://"))
        real = stack.enter_context(locks.lock("invoices"))
        with fencing.transaction(db, real):
            add(db, "x")
        assert fencing.newest(db, "invoices") == real.fence
        with pytest.raises(InvalidArgument, match="pass resource="), fencing.transaction(db, 42):
            pass
        with fencing.transaction(db, 42, "other"):
            pass
        assert fencing.newest(db, "other") == Fence("", 42, "")


def test_a_temporary_table_of_the_guards_name_is_not_taken_for_it(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        with fencing.transaction(db, lease(42)):
            pass
        db.execute(
            "CREATE TEMP TABLE holdfast_fence"
            " (resource PRIMARY KEY, source, token, nonce DEFAULT '', peers DEFAULT '', updated_at)"
        )
        db.commit()
        with pytest.raises(StaleToken), db:
            fencing.enforce(db, "invoices", lease(41))
        assert fencing.newest(db, "invoices") == Fence("s", 42, "n42")


def test_data_in_an_attached_database_is_refused(path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "own.db")) as db:
        fencing.install(db)
        db.execute("ATTACH ? AS shop", (str(path),))
        with pytest.raises(InvalidArgument, match=r"attached .*\(shop\)"):
            fencing.enforce(db, "invoices", lease(42))
        assert not db.in_transaction
        with pytest.raises(InvalidArgument, match="attached"), fencing.transaction(db, lease(42)):
            pass
        fencing.advance(db, "invoices", lease(42))
        db.commit()
        db.execute("DETACH shop")
        db.execute("ATTACH ':memory:' AS scratch")
        with fencing.transaction(db, lease(42)):
            pass


def test_before_install_a_transaction_says_what_to_call(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "empty.db")) as db:
        with pytest.raises(InvalidArgument, match=r"fencing\.install"), fencing.transaction(db, lease(42)):
            pass
        assert not db.in_transaction


@pytest.mark.parametrize("call", [fencing.enforce, fencing.advance])
def test_a_token_far_ahead_of_the_clock_is_refused_before_any_statement(path: Path, call: Any) -> None:
    """Stored once, it would lock out every genuine holder after it."""
    ahead = wall_us() + MAX_AHEAD_US
    with closing(sqlite3.connect(path)) as db:
        for far in (ahead + 60_000_000, 2**62):
            with pytest.raises(InvalidArgument, match="a day ahead of this machine's clock"):
                call(db, "invoices", lease(far))
            with pytest.raises(InvalidArgument, match="a day ahead"):
                call(db, "invoices", far)
        assert not db.in_transaction
        assert fencing.newest(db, "invoices") is None
        call(db, "invoices", lease(ahead - 60_000_000))
        db.rollback()


def test_what_is_plausible() -> None:
    now = 1_795_000_000_000_000
    assert is_plausible(1, now)
    assert is_plausible(now + MAX_AHEAD_US, now)
    assert not is_plausible(now + MAX_AHEAD_US + 1, now)
    assert not is_plausible(0, now)
    assert not is_plausible(-1, now)
