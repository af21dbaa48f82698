"""What has to hold of the order of events, told on real transactions of PostgreSQL.

Each check takes a store and raises ``AssertionError`` where it does not hold: ``test_order`` runs them on the
store that ships, ``test_mutants`` on broken ones, which some check has to catch.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import psycopg

from holdfast.errors import Conflict
from holdfast.events import Event, EventStore
from support import wait_until

__all__ = [
    "CHECKS",
    "Transactions",
    "a_late_commit_is_not_skipped",
    "a_stream_is_in_order",
    "an_idle_transaction_holds_up_nothing",
    "one_writer_for_each_version",
    "whatever_transactions_do",
]

WAIT_SECONDS: Final = 3.0
"""Only a check that fails waits so long."""


class Transactions:
    """Connections to the store's database, each with a transaction of the user's."""

    def __init__(self, conninfo: str, store: EventStore, stack: ExitStack) -> None:
        self.store = store
        self._conninfo = conninfo
        self._stack = stack

    def open(self) -> Any:
        connection: Any = self._stack.enter_context(psycopg.connect(self._conninfo))
        connection.execute("SELECT pg_current_xact_id()")  # numbered now, by its first statement
        return connection


@contextmanager
def transactions(conninfo: str, store: EventStore) -> Iterator[Transactions]:
    with ExitStack() as stack:
        store.install()
        yield Transactions(conninfo, store, stack)


def a_late_commit_is_not_skipped(store: EventStore, conninfo: str) -> None:
    """Its event was inserted first and is committed last: a subscriber that is past it gets it still."""
    with transactions(conninfo, store) as new, store.subscribe() as subscription:
        late = new.open()
        store.append("late", [{"n": 1}], connection=late)
        store.append("early", [{"n": 2}])
        assert data_of(subscription.get(WAIT_SECONDS)) == {"n": 2}
        late.commit()
        assert data_of(subscription.get(WAIT_SECONDS)) == {"n": 1}, "the late one was skipped"
        assert [event.data["n"] for event in store.read_all()] == [2, 1]


def an_idle_transaction_holds_up_nothing(store: EventStore, conninfo: str) -> None:
    """Neither one that has written nothing, nor one that has appended and does not go on."""
    with transactions(conninfo, store) as new, store.subscribe() as subscription:
        new.open()
        store.append("idle", [{"n": 1}], connection=new.open())
        store.append("other", [{"n": 2}])
        assert data_of(subscription.get(WAIT_SECONDS)) == {"n": 2}, "it stalls behind an idle transaction"
        assert [event.data["n"] for event in store.read_all()] == [2]


def a_stream_is_in_order(store: EventStore, conninfo: str) -> None:
    """The transaction with the smaller number appends after the other one has committed."""
    with transactions(conninfo, store) as new:
        first = new.open()
        store.append("stream", [{"n": 1}])
        store.append("stream", [{"n": 2}, {"n": 3}], connection=first)
        first.commit()
        assert [event.version for event in store.read_all()] == [1, 2, 3], "a stream out of order"


def one_writer_for_each_version(store: EventStore, conninfo: str) -> None:
    """Two who append the same version at once: the second waits for the first, and then has a conflict."""
    with transactions(conninfo, store) as new:
        first, second = new.open(), new.open()
        store.append("stream", [{"who": 1}], 0, connection=first)
        outcome: list[object] = []

        def write() -> None:
            try:
                outcome.append(store.append("stream", [{"who": 2}, {"who": 2}], 0, connection=second))
                second.commit()
            except (Conflict, psycopg.Error):
                outcome.append("conflict")

        writer = threading.Thread(target=write)
        writer.start()
        pid = second.info.backend_pid
        watcher = new.open()
        waits = f"SELECT cardinality(pg_blocking_pids({pid})) > 0"
        wait_until(lambda: outcome or watcher.execute(waits).fetchone()[0])
        first.commit()
        writer.join()
        assert outcome == ["conflict"], "two writers of one version"
        assert [event.data["who"] for event in store.read("stream")] == [1]


def whatever_transactions_do(store: EventStore, conninfo: str, seed: int) -> None:
    """Transactions begin, append, commit and give up as chance will have it, while a reader looks in.

    What the reader has seen stays as it is; it sees everything committed at once; each stream in its order.
    """
    chance = random.Random(seed)
    with transactions(conninfo, store) as new:
        opened: list[tuple[Any, str, list[int]]] = []
        versions: dict[str, int] = {}
        committed: set[tuple[str, int]] = set()
        seen: list[tuple[str, int]] = []
        for _ in range(25):
            free = sorted({f"s{n}" for n in range(5)} - {stream for _, stream, _ in opened})
            step = chance.choice(
                ["begin", "append", "append", "commit", "roll back", "append alone", "read", "read"]
            )
            if step == "begin" and free:
                opened.append((new.open(), chance.choice(free), []))
            elif step == "append alone" and free:
                stream = chance.choice(free)
                versions[stream] = store.append(stream, [{}] * chance.randint(1, 3))
                committed |= {(stream, n + 1) for n in range(versions[stream])}
            elif step == "append" and opened:
                connection, stream, own = chance.choice(opened)
                with connection.transaction(force_rollback=chance.random() < 0.2) as savepoint:
                    version = store.append(stream, [{}] * chance.randint(1, 2), connection=connection)
                    if not savepoint.force_rollback:
                        own.append(version)
            elif step in ("commit", "roll back") and opened:
                connection, stream, own = opened.pop(chance.randrange(len(opened)))
                if step == "commit":
                    connection.commit()
                    committed |= {(stream, n + 1) for n in range(max(own, default=0))}
                else:
                    connection.rollback()
            elif step == "read":
                found = [(event.stream, event.version) for event in store.read_all()]
                assert found[: len(seen)] == seen, f"seed {seed}: what was read before has changed"
                assert set(found) == committed, f"seed {seed}: skipped or stalled"
                assert len(found) == len(committed), f"seed {seed}: an event twice"
                for name in versions:
                    order = [version for stream, version in found if stream == name]
                    assert order == sorted(order), f"seed {seed}: stream {name} out of order"
                seen = found


def data_of(event: Event | None) -> object:
    return None if event is None else event.data


CHECKS: Final[dict[str, Callable[[EventStore, str], None]]] = {
    check.__name__: check
    for check in (
        a_late_commit_is_not_skipped,
        an_idle_transaction_holds_up_nothing,
        a_stream_is_in_order,
        one_writer_for_each_version,
    )
}
