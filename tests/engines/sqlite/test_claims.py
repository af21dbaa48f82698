"""What is computed about records beside the rules agrees with the rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.sqlite.stores import One, query
from holdfast.engines.sqlite.clients import (
    QueueView,
    RecordView,
    apply_renewals,
    expiry_guards,
    without_client,
)
from holdfast.rules.record import EMPTY, Record
from holdfast.rules.requests import Acquire, Granted, Queued, Refresh, Release, Request, Watch
from holdfast.rules.transitions import apply

CLIENTS = ("a", "b", "c")


def request(client: str, number: int, what: str) -> Request:
    nonce = f"{client}-{number}"
    if what == "release":
        return Release(nonce)
    if what == "watch":
        return Watch(nonce, client)
    mode = "read" if what == "read" else "write"
    return Acquire(nonce, client, client, "rwlock", mode, 3.0, True)


requests = st.builds(
    request,
    st.sampled_from(CLIENTS),
    st.integers(1, 3),
    st.sampled_from(["read", "write", "write", "release", "watch"]),
)


@st.composite
def records(draw: st.DrawFn) -> tuple[Record, float]:
    record, now = EMPTY, 100.0
    for asked in draw(st.lists(requests, max_size=15)):
        now += draw(st.sampled_from([0.0, 0.1, 1.0]))
        record = apply(record, asked, now, 1).record
    return record, now + draw(st.sampled_from([0.0, 1.0, 2.5, 6.0]))


@given(records(), st.frozensets(st.sampled_from(CLIENTS)))
def test_where_everyone_stands_is_what_the_rule_tells_each(
    given_record: tuple[Record, float], dead: frozenset[str]
) -> None:
    record, now = given_record
    # As it is where this is used: those who ask have just renewed.
    record = apply_renewals(record, dict.fromkeys(CLIENTS, now))
    standing = QueueView(RecordView(record, dead, {}), now)
    for client in CLIENTS:
        for number in (1, 2, 3):
            nonce = f"{client}-{number}"
            assert standing.reply_to(nonce) == apply(record, Refresh(nonce), now, 1, dead).reply


@given(records(), st.sampled_from(CLIENTS))
def test_a_record_without_a_client_has_nothing_of_it(given_record: tuple[Record, float], client: str) -> None:
    record, now = given_record
    after, wakes = without_client(record, client, now)
    left = {holder.client for holder in after.holders} | {waiter.client for waiter in after.queue}
    left |= {watcher.client for watcher in after.watchers}
    assert client not in left
    assert {wake.client for wake in wakes} <= left
    # Of the others everything stays, whatever the time.
    assert [h for h in record.holders if h.client != client] == list(after.holders)
    assert [w.nonce for w in record.queue if w.client != client] == [w.nonce for w in after.queue]


def test_only_leases_that_renewals_could_have_extended_are_guarded() -> None:
    record = EMPTY
    for number, renews in ((1, True), (2, False)):
        ask = Acquire(f"a-{number}", "a", "a", "rwlock", "read", 1.0, False, renews=renews)
        record = apply(record, ask, 100.0, number).record
    assert expiry_guards(RecordView(record, frozenset(), {"a": 7.0}), 100.5) == []
    assert expiry_guards(RecordView(record, frozenset(), {"a": 7.0}), 101.0) == [("a", 7.0)]
    assert expiry_guards(RecordView(record, frozenset({"a"}), {"a": 7.0}), 101.0) == []
    assert expiry_guards(RecordView(record, frozenset(), {}), 101.0) == []


@pytest.mark.usefixtures("strangers")
def test_a_waiter_looks_again_without_writing(path: Path, client: Callable[[], One]) -> None:
    holder, first, second = client(), client(), client()
    attempt, _ = holder.hold("x")
    waiting, behind = first.attempt(wait=True), second.attempt(wait=True)
    assert isinstance(first.ask("x", waiting), Queued)
    assert isinstance(second.ask("x", behind), Queued)
    version = query(path, "SELECT version FROM locks")
    told = second.ask("x", behind)
    assert isinstance(told, Queued)
    assert told.position == 1
    assert query(path, "SELECT version FROM locks") == version
    holder.release("x", attempt)
    assert isinstance(second.ask("x", behind), Queued)
    assert isinstance(first.ask("x", waiting), Granted)
