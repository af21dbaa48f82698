"""Appending to streams and reading them, on both databases."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from events.stores import KINDS, open_store, url_of
from fencing.sql_clients import Database, new_database, open_client
from holdfast import events
from holdfast.errors import Conflict, EngineUnavailable, InvalidArgument, LockTimeout, Unsupported
from holdfast.events import EventStore


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest) -> Database:
    return new_database(request.param)


@pytest.fixture
def store(database: Database) -> Iterator[EventStore]:
    with open_store(database) as opened:
        yield opened


def numbers(store: EventStore, stream: str, from_: int = 0) -> list[int]:
    return [event.data["n"] for event in store.read(stream, from_)]


def test_a_stream_from_its_beginning(store: EventStore) -> None:
    assert list(store.read("account")) == [] == list(store.read_all())
    assert store.append("account", [{"n": 1}], expected_version=0) == 1
    assert store.append("account", [{"n": 2}, {"n": 3}], expected_version=1) == 3
    assert store.append("other", [{"n": 9}]) == 1
    assert store.append("account", [{"n": 4}]) == 4
    assert numbers(store, "account") == [1, 2, 3, 4]
    assert numbers(store, "account", from_=3) == [4]
    assert [event.version for event in store.read("account", 1)] == [2, 3, 4]
    found = list(store.read_all())
    assert [(event.stream, event.version, event.position) for event in found] == [
        ("account", 1, 1),
        ("account", 2, 2),
        ("account", 3, 3),
        ("other", 1, 4),
        ("account", 4, 5),
    ]
    assert list(store.read_all(from_=4)) == found[4:]
    assert list(store.read_all(from_=99)) == []


@pytest.mark.parametrize("expected", [0, 1, 3])
def test_another_version_than_expected_is_a_conflict(store: EventStore, expected: int) -> None:
    store.append("account", [{"n": 1}, {"n": 2}])
    with pytest.raises(Conflict, match=f"is at version 2, not {expected}: read what is new") as caught:
        store.append("account", [{"n": 9}, {"n": 10}], expected)
    assert (caught.value.version, caught.value.name) == (2, "account")
    assert numbers(store, "account") == [1, 2]


def test_an_event_comes_back_as_it_was(store: EventStore) -> None:
    event: Mapping[str, Any] = {
        "text": 'it\'s 100 % ":new" \\ \\u0000 é 𝄞',
        "numbers": [1, 1.0, -0.5, 1e300, 2**80, True, None],
        "nested": {"": {"a": []}},
    }
    store.append("a stream's 'name' with :colon % é", [event])
    (found,) = store.read("a stream's 'name' with :colon % é")
    assert found.data == event
    assert [type(each) for each in found.data["numbers"]] == [type(each) for each in event["numbers"]]
    assert found.at.utcoffset() is not None


def test_many_writers_of_one_stream(store: EventStore) -> None:
    """Each version is written once, and each of those who decided by a version it wrote next to."""
    conflicts: list[int] = []

    def write(who: int) -> None:
        for number in range(10):
            version = number
            while True:
                try:
                    version = store.append("hot", [{"who": who, "after": version}], version)
                    break
                except Conflict as conflict:
                    conflicts.append(who)
                    version = int(str(conflict.version))

    run_all(write, 4)
    found = list(store.read("hot"))
    assert [event.version for event in found] == list(range(1, 41))
    assert all(event.data["after"] == event.version - 1 for event in found)


def test_many_writers_without_an_expected_version_meet_no_conflict(store: EventStore) -> None:
    run_all(lambda who: [store.append("hot", [{"n": who}, {"n": who}]) for _ in range(10)], 4)
    found = numbers(store, "hot")
    assert len(found) == 80
    assert all(found[n] == found[n + 1] for n in range(0, 80, 2)), "an append is all of a piece"


def run_all(function: Any, number: int) -> None:
    failures: list[BaseException] = []

    def one(who: int) -> None:
        try:
            function(who)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(who,)) for who in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_in_the_users_transaction(store: EventStore, database: Database) -> None:
    store.install()
    with open_client(database, database.first_driver) as db:
        db.execute("CREATE TABLE account (balance INTEGER)")
        db.commit()
        db.execute("INSERT INTO account VALUES (1)")
        assert store.append("account", [{"n": 1}], 0, connection=db.target) == 1
        with pytest.raises(Conflict):
            store.append("account", [{"n": 2}], 0, connection=db.target)
        assert numbers(store, "account") == [], "not committed yet"
        db.rollback()
        assert numbers(store, "account") == []
        store.append("account", [{"n": 3}], 0, connection=db.target)
        db.execute("INSERT INTO account VALUES (2)")
        db.commit()
        assert numbers(store, "account") == [3]
        assert [tuple(row) for row in db.execute("SELECT balance FROM account")] == [(2,)]


def test_snapshots(store: EventStore) -> None:
    assert store.load_snapshot("account") is None
    for version in (2, 5, 3):
        store.snapshot("account", version, {"balance": version * 10})
    found = store.load_snapshot("account")
    assert found is not None
    assert (found.version, found.data) == (5, {"balance": 50}), "an older one replaces no newer one"


def test_a_subscription_waits_for_what_comes(store: EventStore) -> None:
    store.append("a", [{"n": 1}])
    with store.subscribe(timeout=0.05) as subscription:
        assert [event.data["n"] for event in subscription] == [1]
        assert subscription.position == 1
        writer = threading.Timer(0.1, lambda: store.append("b", [{"n": 2}]))
        writer.start()
        found = subscription.get(timeout=30)
        writer.join()
        assert found is not None
        assert (found.data["n"], found.position) == (2, 2)
        assert subscription.get(timeout=0) is None


def test_closing_ends_a_subscription_that_waits(store: EventStore) -> None:
    subscription = store.subscribe()
    closer = threading.Timer(0.1, subscription.close)
    closer.start()
    assert list(subscription) == []
    closer.join()
    assert subscription.get() is None


def test_a_closed_store_says_so(store: EventStore) -> None:
    store.append("a", [{"n": 1}])
    store.close()
    with pytest.raises(EngineUnavailable, match="closed"):
        store.append("a", [{"n": 1}])
    with pytest.raises(EngineUnavailable, match="closed"):
        store.subscribe()


def test_the_tables_are_made_once(store: EventStore, database: Database) -> None:
    made: list[bool] = []

    def install(who: int) -> None:
        with open_store(database) as another:
            made.append(another.install())

    run_all(install, 4)
    assert sorted(made)[:3] == [False] * 3
    assert store.install() is False


AS: Any = object()


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda store: store.append("", [{}]), "stream is empty"),
        (lambda store: store.append("a\0", [{}]), "NUL"),
        (lambda store: store.append("a", []), "events is empty"),
        (lambda store: store.append("a", {"n": 1}), r"write \[event\]"),
        (lambda store: store.append("a", "text"), "list of mappings"),
        (lambda store: store.append("a", ["text"]), "an event is a mapping"),
        (lambda store: store.append("a", [{1: 2}]), "key 1, and JSON has text keys"),
        (lambda store: store.append("a", [{"n": float("nan")}]), "no JSON"),
        (lambda store: store.append("a", [{"n": object()}]), "no JSON"),
        (lambda store: store.append("a", [{"n": ["\0"]}]), "NUL character or a lone surrogate"),
        (lambda store: store.append("a", [{"\ud800": 1}]), "NUL character or a lone surrogate"),
        (lambda store: store.append("a", [{}], -1), "expected_version is a whole number"),
        (lambda store: store.append("a", [{}], True), "expected_version is a whole number"),
        (lambda store: store.append("a", [{}], connection=AS), "not a connection or cursor"),
        (lambda store: store.read("a", -1), "from_ is a whole number"),
        (lambda store: store.read_all(1.5), "from_ is a whole number"),
        (lambda store: store.subscribe(None), "from_ is a whole number"),
        (lambda store: store.projection(""), "projection is empty"),
        (lambda store: store.projection("p").run(AS, None), "handler is a function"),
        (lambda store: store.projection("p").run(AS, print, batch=0), "batch is a number"),
    ],
)
def test_bad_input_is_refused_before_any_io(call: Any, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        call(events.connect("postgresql://nobody@127.0.0.1:1/nowhere"))


@pytest.mark.parametrize(
    ("url", "error", "complaint"),
    [
        ("redis://localhost", Unsupported, "postgresql://"),
        ("memory://", Unsupported, "sqlite:///"),
        ("sqlite://host/x.db", InvalidArgument, "no host"),
        ("sqlite:///:memory:", InvalidArgument, "one connection"),
        ("sqlite:///", InvalidArgument, "path of a file"),
        ("sqlite:///x.db?a=1", InvalidArgument, "no option 'a'"),
        ("postgresql://h/d?schema=Bad", InvalidArgument, "lower-case letters"),
        ("postgresql://h/d?schema=a%22;drop", InvalidArgument, "lower-case letters"),
        ("postgresql://h/d?pooler=maybe", InvalidArgument, "pooler is yes or no"),
        ("postgresql://h/d?connect_timeout=1", InvalidArgument, "no option"),
    ],
)
def test_a_url_that_names_no_store(url: str, error: type[Exception], complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        events.connect(url)


def test_a_password_is_never_shown() -> None:
    store = events.connect("postgresql://me:secret@127.0.0.1:1/nowhere", io_timeout=1)
    with pytest.raises(EngineUnavailable) as caught:
        store.append("a", [{}])
    assert "secret" not in f"{caught.value!r} {caught.value.__cause__!r} {vars(store)}"


def test_a_file_of_locks_is_kept_for_locks(tmp_path: Any) -> None:
    import holdfast

    with holdfast.connect(f"sqlite:///{tmp_path}/locks.db") as locks, locks.lock("a"):
        pass
    url = f"sqlite:///{tmp_path}/locks.db"
    with events.connect(url) as store, pytest.raises(InvalidArgument, match="name another file"):
        store.append("a", [{}])


def test_beside_the_locks_by_default(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{tmp_path}/locks.db")
    with events.connect() as store:
        store.append("a", [{"n": 1}])
    assert (tmp_path / "events.db").is_file()
    with events.connect(f"sqlite:///{tmp_path}/events.db") as store:
        assert numbers(store, "a") == [1]


def test_a_connection_to_another_database_is_refused(store: EventStore, database: Database) -> None:
    other = new_database("sqlite" if database.kind != "sqlite" else "postgresql")
    with open_client(other, other.first_driver) as db, pytest.raises(InvalidArgument, match="is in"):
        store.append("a", [{}], connection=db.target)
    assert url_of(database)


def test_tables_that_cannot_be_made_beside_the_users_transaction() -> None:
    database = new_database("sqlite")
    connection = sqlite3.connect(database.name, isolation_level=None)
    with closing(connection), events.connect(url_of(database), io_timeout=0.2) as store:
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(LockTimeout, match=r"call store.install\(\) once"):
            store.append("a", [{"n": 1}], connection=connection)


def test_a_refused_number_is_called_what_the_user_calls_it(store: EventStore) -> None:
    with pytest.raises(InvalidArgument, match=r"^version is"):
        store.snapshot("a", -1, {})


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "events.db"
    refused = pytest.raises(EngineUnavailable, match=rf"{path} cannot be opened .* folder must exist")
    with events.connect(f"sqlite:///{path}") as store, refused:
        store.append("a", [{"n": 1}])
