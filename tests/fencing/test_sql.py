"""The guard in SQLite, within one process: arguments, transactions, errors, and the rule held against it."""

from __future__ import annotations

import pickle
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import NullPool, create_engine

import holdfast
from holdfast import fencing
from holdfast.drivers.clock import wall_us
from holdfast.errors import HoldfastError, InvalidArgument, NotHeld, StaleToken
from holdfast.fencing import aio
from holdfast.fencing.arguments import Presentable, mark_of
from holdfast.fencing.plans import load, present, run
from holdfast.fencing.rule import Mark, Refuse, after, decide, moved
from holdfast.fencing.sql import table_of
from holdfast.model import Fence, Mode

NOW_US = wall_us()
"""As large as tokens are."""


@dataclass(frozen=True)
class FakeLease:
    """What a guard reads of a lease."""

    fence: Fence
    mode: Mode = "exclusive"
    peers: tuple[int, ...] = ()


def lease(token: int, nonce: str = "a", source: str = "s", mode: Mode = "exclusive") -> FakeLease:
    return FakeLease(Fence(source, token, nonce), mode)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with a guard and a table to protect."""
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file)) as db, db:
        fencing.install(db)
        db.execute("CREATE TABLE invoice (text TEXT)")
    return file


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        yield connection


def invoices(db: sqlite3.Connection) -> list[str]:
    return [row[0] for row in db.execute("SELECT text FROM invoice")]


def write(db: sqlite3.Connection, presented: Presentable, text: str) -> None:
    with db:
        fencing.enforce(db, "invoices", presented)
        db.execute("INSERT INTO invoice VALUES (?)", (text,))


# The story


def test_the_holder_that_woke_up_late_is_refused_and_leaves_nothing(db: sqlite3.Connection) -> None:
    write(db, lease(41, "old"), "by the old holder, in time")
    write(db, lease(42, "new"), "by the new holder")
    with pytest.raises(StaleToken) as caught:
        write(db, lease(41, "old"), "by the old holder, too late")
    assert (caught.value.resource, caught.value.token, caught.value.newest) == ("invoices", 41, 42)
    assert invoices(db) == ["by the old holder, in time", "by the new holder"]
    assert fencing.newest(db, "invoices") == Fence("s", 42, "new")


def test_advancing_shuts_out_the_old_holder_before_the_new_one_wrote(db: sqlite3.Connection) -> None:
    write(db, lease(41), "old")
    with db:
        fencing.advance(db, "invoices", lease(42))
    with pytest.raises(StaleToken):
        write(db, lease(41), "late")


def test_a_rolled_back_transaction_does_not_advance_the_guard(db: sqlite3.Connection) -> None:
    write(db, lease(41), "old")
    fencing.enforce(db, "invoices", lease(42))
    db.rollback()
    assert fencing.newest(db, "invoices") == Fence("s", 41, "a")
    write(db, lease(41), "still the newest that committed")


def test_resources_do_not_know_each_other(db: sqlite3.Connection) -> None:
    write(db, lease(42), "x")
    with db:
        fencing.enforce(db, "customers", lease(1))
    assert fencing.newest(db, "invoices") == Fence("s", 42, "a")
    assert fencing.newest(db, "customers") == Fence("s", 1, "a")
    assert fencing.newest(db, "nobody's") is None


def name_of(value: object) -> str:
    """The same in every process that collects the tests, where a plain object's repr is not."""
    return "object" if type(value) is object else repr(value)


@pytest.mark.parametrize("presented", [lease(42), Fence("s", 42, "a"), 42], ids=["lease", "fence", "int"])
def test_a_lease_a_fence_or_a_bare_number(db: sqlite3.Connection, presented: Presentable) -> None:
    write(db, 41, "first")
    write(db, presented, "second")
    write(db, presented, "again")
    with pytest.raises(StaleToken):
        write(db, 41, "late")


def test_newest_leaves_empty_what_a_bare_number_does_not_say(db: sqlite3.Connection) -> None:
    write(db, 42, "x")
    assert fencing.newest(db, "invoices") == Fence("", 42, "")


# Refusals say what happened and what to do


def test_message_for_an_older_token(db: sqlite3.Connection) -> None:
    write(db, lease(42), "x")
    with pytest.raises(
        StaleToken, match=r"token 41 .*'invoices'.* token 42.*Roll back.*acquire the lock again"
    ):
        write(db, lease(41), "y")


def test_message_for_another_grant_of_the_same_number(db: sqlite3.Connection) -> None:
    write(db, lease(42, "a"), "x")
    with pytest.raises(StaleToken, match=r"another grant.*nonce 'a', not 'b'"):
        write(db, lease(42, "b"), "y")


def test_message_for_another_source_names_move(db: sqlite3.Connection) -> None:
    write(db, lease(42, source="redis"), "x")
    with pytest.raises(StaleToken, match=r"'redis'.*'etcd'.*fencing\.move"):
        write(db, lease(43, source="etcd"), "y")


def test_a_refusal_travels_between_processes_whole(db: sqlite3.Connection) -> None:
    write(db, 42, "x")
    with pytest.raises(StaleToken) as caught:
        write(db, 41, "y")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.resource, copy.token, copy.newest) == (str(caught.value), "invoices", 41, 42)


# Moving to another engine


def test_move_lets_the_new_source_in_and_keeps_the_old_one_out(db: sqlite3.Connection) -> None:
    write(db, lease(1000, source="redis"), "x")
    with db:
        fencing.move(db, "invoices", "etcd")
    write(db, lease(7, source="etcd"), "y")
    with pytest.raises(StaleToken):
        write(db, lease(1001, source="redis"), "z")


def test_moving_twice_does_not_let_stale_holders_back_in(db: sqlite3.Connection) -> None:
    with db:
        fencing.move(db, "invoices", "etcd")
    write(db, lease(7, source="etcd"), "x")
    with db:
        fencing.move(db, "invoices", "etcd")
    with pytest.raises(StaleToken):
        write(db, lease(6, source="etcd"), "y")


# Arguments are refused before any I/O


class Untouchable(sqlite3.Connection):
    """Fails the test when anything is executed on it."""

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("I/O before the arguments were checked")

    execute = cursor


BAD_TOKENS: list[Any] = [True, -1, 2**63, "42", 4.2, None, object(), b"42", Fence("s", -1, "a")]
BAD_TOKENS += [Fence("", 1, "a"), Fence("s", 1, ""), Fence("s", True, "a"), Fence("s\0", 1, "a")]
BAD_RESOURCES: list[Any] = ["", "x" * 513, "ü" * 257, "a\0b", "\ud800", None, 7, b"invoices"]
PRESENTING: list[Callable[..., None]] = [fencing.enforce, fencing.advance]


@pytest.mark.parametrize("call", PRESENTING)
@pytest.mark.parametrize("token", BAD_TOKENS, ids=name_of)
def test_what_is_no_token(call: Callable[..., None], token: Any) -> None:
    with closing(sqlite3.connect(":memory:", factory=Untouchable)) as db, pytest.raises(InvalidArgument):
        call(db, "invoices", token)


@pytest.mark.realtime
def test_a_lease_that_is_over_is_refused_before_any_statement(db: sqlite3.Connection) -> None:
    """It knows by itself. Its fence does not, and meets the guard."""
    with holdfast.connect("memory://") as locks:
        over = locks.lock("invoices").acquire()
        assert over is not None
        over.release()
        with closing(sqlite3.connect(":memory:", factory=Untouchable)) as untouched:
            for call in PRESENTING:
                with pytest.raises(NotHeld):
                    call(untouched, "invoices", over)
            with pytest.raises(NotHeld), fencing.transaction(untouched, over):
                pass
            with pytest.raises(NotHeld):
                fencing.fenced_update(untouched, "invoice", {"id": 1}, over, {})
    write(db, over.fence, "by its fence")


@pytest.mark.parametrize("resource", BAD_RESOURCES, ids=ascii)
def test_what_is_no_resource(resource: Any) -> None:
    with closing(sqlite3.connect(":memory:", factory=Untouchable)) as db:
        for call in PRESENTING:
            with pytest.raises(InvalidArgument, match="resource"):
                call(db, resource, 1)
        with pytest.raises(InvalidArgument, match="resource"):
            fencing.newest(db, resource)
        with pytest.raises(InvalidArgument, match="resource"):
            fencing.move(db, resource, "s")


def test_a_source_must_be_named(db: sqlite3.Connection) -> None:
    with pytest.raises(InvalidArgument, match="source is empty"):
        fencing.move(db, "invoices", "")


def test_a_token_from_the_environment_is_text_and_the_message_says_so(db: sqlite3.Connection) -> None:
    text: Any = "42"
    with pytest.raises(InvalidArgument, match=r"int\(text\)"):
        fencing.enforce(db, "invoices", text)


def test_the_text_of_a_grant_stands_for_its_lease(db: sqlite3.Connection) -> None:
    write(db, fencing.fence_text("s", 15, "n15", "permit", [12]), "newest")
    assert fencing.newest(db, "invoices") == Fence("s", 15, "n15")
    write(db, fencing.fence_text("s", 12, "n12", "permit"), "its peer")
    with pytest.raises(StaleToken):
        write(db, fencing.fence_text("s", 14, "n14"), "late")
    with pytest.raises(StaleToken):
        write(db, fencing.fence_text("t", 16, "n16"), "another source's")
    with pytest.raises(InvalidArgument, match="read lease"):
        write(db, fencing.fence_text("s", 16, "n16", "read"), "a reader's")


@pytest.mark.parametrize("target", [None, 7, "shop.db", object()], ids=name_of)
def test_what_is_no_connection(target: Any) -> None:
    with pytest.raises(InvalidArgument, match="sqlite3"):
        fencing.install(target)


def test_the_largest_resource_and_any_text(db: sqlite3.Connection) -> None:
    for resource in ("x" * 512, "ü" * 256, "Robert'); DROP TABLE holdfast_fence; --", "%s :resource ? \\"):
        with db:
            fencing.enforce(db, resource, lease(NOW_US, "'\"", "'; --"))
        assert fencing.newest(db, resource) == Fence("'; --", NOW_US, "'\"")


def test_a_read_lease_may_not_write_but_may_advance(db: sqlite3.Connection) -> None:
    with pytest.raises(InvalidArgument, match=r"read lease.*write\(\)"):
        fencing.enforce(db, "invoices", lease(42, mode="read"))
    with db:
        fencing.advance(db, "invoices", lease(42, mode="read"))
    with pytest.raises(StaleToken):
        write(db, lease(41, mode="write"), "late")


def test_permits_pass_beside_the_newest_while_they_are_its_peers(db: sqlite3.Connection) -> None:
    write(db, FakeLease(Fence("s", 15, "n15"), "permit", peers=(5, 12)), "newest")
    write(db, FakeLease(Fence("s", 12, "n12"), "permit", peers=(5,)), "live beside it")
    for ended in (1, 2, 13):
        with pytest.raises(StaleToken):
            write(db, lease(ended, mode="permit"), "ended before")
    write(db, FakeLease(Fence("s", 16, "n16"), "permit", peers=(12, 15)), "newer")
    with pytest.raises(StaleToken):
        write(db, FakeLease(Fence("s", 5, "n5"), "permit"), "ended meanwhile")


# Transactions


def test_the_check_holds_the_write_lock_until_the_transaction_ends(
    path: Path, db: sqlite3.Connection
) -> None:
    fencing.enforce(db, "invoices", 41)
    with closing(sqlite3.connect(path, timeout=0)) as other:
        with pytest.raises(sqlite3.OperationalError, match="locked") as caught:
            fencing.enforce(other, "invoices", 42)
        assert any("another transaction holds the write lock" in note for note in caught.value.__notes__)
        db.commit()
        write(other, 42, "after it")
    with pytest.raises(StaleToken):
        write(db, 41, "late")


def test_a_refusal_does_not_keep_the_write_lock(path: Path, db: sqlite3.Connection) -> None:
    write(db, 42, "x")
    with pytest.raises(StaleToken):
        fencing.enforce(db, "invoices", 41)
    with closing(sqlite3.connect(path, timeout=0)) as other:
        write(other, 43, "y")


def test_a_refusal_leaves_the_users_own_transaction_to_the_user(db: sqlite3.Connection) -> None:
    write(db, 42, "x")
    db.execute("BEGIN")
    with pytest.raises(StaleToken):
        fencing.enforce(db, "invoices", 41)
    assert db.in_transaction
    db.rollback()


def test_autocommit_would_guard_nothing(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        with pytest.raises(InvalidArgument, match="BEGIN IMMEDIATE"):
            fencing.enforce(db, "invoices", 41)
        db.execute("BEGIN IMMEDIATE")
        fencing.enforce(db, "invoices", 41)
        db.execute("COMMIT")
        fencing.advance(db, "invoices", 42)
        assert not db.in_transaction
        db.execute("BEGIN")
        with pytest.raises(StaleToken):
            fencing.enforce(db, "invoices", 41)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3.connect(autocommit=) came with Python 3.12")
def test_the_autocommit_attribute_of_newer_pythons(path: Path) -> None:
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect
    with (
        closing(connect(path, autocommit=True)) as db,
        pytest.raises(InvalidArgument, match="BEGIN IMMEDIATE"),
    ):
        fencing.enforce(db, "invoices", 41)
    with closing(connect(path, autocommit=False)) as db:
        write(db, 42, "x")
        with pytest.raises(StaleToken):
            write(db, 41, "late")
        assert invoices(db) == ["x"]


@pytest.mark.parametrize("isolation_level", ["", "DEFERRED", "IMMEDIATE", "EXCLUSIVE"])
def test_every_isolation_level_that_opens_transactions(path: Path, isolation_level: str) -> None:
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect
    with closing(connect(path, isolation_level=isolation_level)) as db:
        fencing.enforce(db, "invoices", 41)
        assert db.in_transaction
        db.rollback()
        assert fencing.newest(db, "invoices") is None


def test_reading_first_on_a_wal_database_fails_closed_and_says_why(
    path: Path, db: sqlite3.Connection
) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("BEGIN")
    invoices(db)
    with closing(sqlite3.connect(path)) as other:
        write(other, 42, "meanwhile")
    with pytest.raises(sqlite3.OperationalError) as caught:
        fencing.enforce(db, "invoices", 43)
    assert any("its first statement" in note for note in caught.value.__notes__)
    db.rollback()


# Connections as users have them


def test_what_a_pool_of_sqlalchemy_gives_out(path: Path) -> None:
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    raw = engine.raw_connection()
    fencing.enforce(raw, "invoices", lease(42))
    raw.rollback()
    assert fencing.newest(raw, "invoices") is None
    raw.close()
    not_one: Any = engine
    with pytest.raises(InvalidArgument, match="not a connection or cursor"):
        fencing.newest(not_one, "invoices")


def test_public_names() -> None:
    verbs = ["advance", "enforce", "install", "marks", "move", "newest", "prune", "transaction"]
    tables = ["fenced_update", "fenced_upsert", "protect_table", "unprotect_table"]
    assert sorted(fencing.__all__) == sorted([*verbs, *tables, "Grant", "fence_text", "parse_fence"])
    assert sorted(aio.__all__) == sorted([*verbs, *tables])


def test_a_cursor_in_the_middle_of_a_result_goes_on(db: sqlite3.Connection) -> None:
    write(db, 1, "x")
    cursor = db.execute("SELECT value FROM (SELECT 1 AS value UNION SELECT 2)")
    assert cursor.fetchone() == (1,)
    fencing.enforce(cursor, "invoices", 2)
    assert fencing.newest(cursor, "invoices") == Fence("", 2, "")
    assert cursor.fetchone() == (2,)
    db.rollback()


def test_factories_of_the_users_do_not_matter(db: sqlite3.Connection) -> None:
    db.row_factory = lambda cursor, row: {"row": row}
    db.text_factory = lambda data: f"text of {len(data)} bytes"
    with db:
        fencing.enforce(db, "invoices", lease(42))
    assert fencing.newest(db, "invoices") == Fence("s", 42, "a")


@pytest.mark.parametrize("call", [lambda db: fencing.enforce(db, "r", 1), lambda db: fencing.newest(db, "r")])
def test_without_install_the_error_says_what_to_call(call: Callable[[sqlite3.Connection], None]) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        with pytest.raises(InvalidArgument, match=r"no guard yet: call fencing\.install\(connection\)"):
            call(db)
        assert not db.in_transaction


def test_install_is_idempotent_and_keeps_what_is_stored(db: sqlite3.Connection) -> None:
    write(db, 42, "x")
    fencing.install(db)
    fencing.install(db.cursor())
    assert fencing.newest(db, "invoices") == Fence("", 42, "")


def test_install_joins_an_open_transaction(path: Path) -> None:
    with closing(sqlite3.connect(path.with_name("empty.db"))) as db:
        db.execute("BEGIN")
        fencing.install(db)
        db.rollback()
        assert db.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_a_table_that_does_not_obey_the_rule_fails_closed(db: sqlite3.Connection) -> None:
    write(db, 42, "x")
    db.execute("CREATE TRIGGER meddle BEFORE UPDATE ON holdfast_fence BEGIN SELECT RAISE(IGNORE); END")
    with pytest.raises(HoldfastError, match="trigger"):
        write(db, 43, "y")
    assert invoices(db) == ["x"]


# The SQL is the rule

tokens = st.one_of(st.integers(min_value=0, max_value=6), st.sampled_from([11, 16, NOW_US - 1, NOW_US]))
fences = st.builds(Fence, st.sampled_from(["s", "t"]), tokens, st.sampled_from(["a", "b", "c"]))
peers = st.lists(tokens, max_size=4).map(tuple)
leases = st.builds(FakeLease, fences, st.just("permit"), peers)
presentables = st.one_of(fences, leases, tokens)
moves = st.sampled_from(["move to s", "move to t"])


def every_mark(tokens: Sequence[int]) -> list[Mark]:
    """Every combination of known and unknown parts."""
    parts = product(tokens, ["", "s", "t"], ["", "a", "b"], [(), (3,), (3, 4)])
    return [Mark(*each) for each in parts]


def passes(db: sqlite3.Connection, mark: Mark) -> bool:
    table = table_of(db)
    try:
        run(present(table.dialect, "r", mark), table.carry_out)
    except StaleToken:
        return False
    return True


def stored_in(db: sqlite3.Connection) -> Mark | None:
    table = table_of(db)
    return run(load(table.dialect, "r"), table.carry_out)


@pytest.mark.parametrize("stored", [None, *every_mark([5])], ids=str)
def test_each_single_step_of_the_sql_is_the_rules(stored: Mark | None) -> None:
    """Exhaustive where it matters: older, a peer, equal and newer, with every part known or not."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        fencing.install(db)
        for presented in every_mark([2, 3, 4, 5, 6]):
            db.execute("DELETE FROM holdfast_fence")
            if stored is not None:
                assert passes(db, stored)
            decision = decide(stored, presented)
            assert passes(db, presented) == (not isinstance(decision, Refuse)), presented
            assert stored_in(db) == after(stored, decision), presented


@given(st.lists(st.one_of(presentables, presentables, presentables, moves), max_size=30))
def test_sql_and_rule_give_the_same_decisions_and_the_same_state(sequence: list[Presentable | str]) -> None:
    with closing(sqlite3.connect(":memory:")) as db:
        fencing.install(db)
        stored: Mark | None = None
        for step in sequence:
            if isinstance(step, str):
                source = step[-1]
                fencing.move(db, "r", source)
                stored = moved(stored, source)
            else:
                stored = present_to_both(db, stored, step)
            assert stored_in(db) == stored


def present_to_both(db: sqlite3.Connection, stored: Mark | None, presented: Presentable) -> Mark | None:
    mark = mark_of(presented)
    decision = decide(stored, mark)
    if isinstance(decision, Refuse):
        with pytest.raises(StaleToken) as caught:
            fencing.enforce(db, "r", presented)
        assert stored is not None
        assert (caught.value.token, caught.value.newest) == (mark.token, stored.token)
    else:
        fencing.enforce(db, "r", presented)
    return after(stored, decision)
