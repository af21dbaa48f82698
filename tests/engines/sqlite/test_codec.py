"""Records as they are kept: as text, renewed as a whole, told anew on another clock."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.engines.sqlite.clients import apply_renewals, rebase
from holdfast.engines.sqlite.codec import SCHEMA, SchemaTooNew, decode, encode
from holdfast.rules.record import (
    EMPTY,
    PATIENCE_SECONDS,
    RETENTION_SECONDS,
    Holder,
    Record,
    StoredValue,
    is_idle,
)
from holdfast.rules.requests import Acquire, Granted
from holdfast.rules.transitions import apply
from rules.moves import CLIENTS
from rules.test_transitions import records
from support.thorough import examples

pytestmark = pytest.mark.timeless

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)

HOLDER = Holder("n", "a", "host/1/t", "exclusive", 7, 0.0, 10.0, 10.0, True, None, {})


@settings(max_examples=examples(100))
@given(records, texts, st.binary(max_size=50))
def test_a_record_comes_back_as_it_was(state: tuple[Record, float], text: str, data: bytes) -> None:
    record = state[0]._replace(value=StoredValue(data, 2**53 - 1, 2**60))
    holders = tuple(h._replace(owner=text, metadata={text: text}) for h in record.holders)
    record = record._replace(holders=holders)
    back = decode(encode(record))
    assert back == record
    assert [type(part) for part in back] == [type(part) for part in record]
    assert encode(record).count("\n") == (len(record.queue) + 3 if record.queue else 0)


def test_the_empty_record_comes_back() -> None:
    assert decode(encode(EMPTY)) == EMPTY


JUNK: tuple[object, ...] = (
    None,
    5,
    "x",
    [],
    {},
    [1],
    [[]],
    [["a"]],
    ["!", 1, 2],
    [None] * 3,
    [[1] * 11],
    [[1] * 12],
    {"a": 1},
)


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_what_is_no_record_is_refused_as_such(junk: object) -> None:
    """One place of a good record is replaced by something else: a ValueError, and no other surprise."""
    good = EMPTY._replace(kind="lock", holders=(HOLDER,), value=StoredValue(b"v", 1, 2))
    for place in range(1, len(EMPTY) + 1):
        parsed = json.loads(encode(good))
        parsed[place] = junk
        with contextlib.suppress(ValueError):
            decode(json.dumps(parsed))


@pytest.mark.parametrize(
    "text",
    ["", "x", "{}", "[]", "null", "5", '"text"', "[1]", "[1,2,3]", '["1"' + ",0" * 9 + "]", "[" * 200_000],
    ids=lambda text: text[:12],
)
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as refusal:
        decode(text)
    assert not isinstance(refusal.value, SchemaTooNew)


@pytest.mark.parametrize("more", [[], ["a field of tomorrow"]])
def test_a_newer_schema_is_named_before_anything_else(more: list[str]) -> None:
    fields = json.loads(encode(EMPTY))
    with pytest.raises(SchemaTooNew, match="upgrade holdfast"):
        decode(json.dumps([SCHEMA + 1, *fields[1:], *more]))


def test_a_name_of_which_nothing_is_known_is_idle() -> None:
    assert is_idle(EMPTY)
    assert not is_idle(EMPTY._replace(holders=(HOLDER,)))


renewals = st.dictionaries(st.sampled_from(CLIENTS), st.floats(900.0, 1500.0))


@settings(max_examples=examples(100))
@given(records, renewals)
def test_a_client_that_renews_covers_its_own_and_shortens_nothing(
    state: tuple[Record, float], renewed_at: dict[str, float]
) -> None:
    record, _ = state
    covered = apply_renewals(record, renewed_at)
    assert covered._replace(holders=record.holders, queue=record.queue) == record
    for old, new in zip(record.holders, covered.holders, strict=True):
        assert new._replace(expires_at=old.expires_at) == old
        assert new.expires_at >= old.expires_at
        if new.expires_at > old.expires_at:
            assert old.renews
            assert new.expires_at <= renewed_at[old.client] + old.ttl
            assert old.until is None or new.expires_at <= old.until, "max_hold ends it whatever is renewed"
        elif old.renews and old.client in renewed_at:
            full = renewed_at[old.client] + old.ttl
            assert old.expires_at >= (full if old.until is None else min(full, old.until))
    for was, now in zip(record.queue, covered.queue, strict=True):
        alive = renewed_at.get(was.client)
        patience = was.expires_at if alive is None else max(was.expires_at, alive + PATIENCE_SECONDS)
        assert now == was._replace(expires_at=patience)
    assert apply_renewals(covered, renewed_at) == covered


def test_what_no_client_holds_is_covered_by_nobody() -> None:
    exported = EMPTY._replace(holders=(HOLDER._replace(client="", renews=False),))
    assert apply_renewals(exported, {"": 100.0, "a": 100.0}) == exported


@settings(max_examples=examples(100))
@given(records, st.floats(0.0, 2000.0))
def test_on_another_clock_everyone_gets_the_full_time_again(state: tuple[Record, float], now: float) -> None:
    record, old_now = state
    told = rebase(record, now)
    assert [h[:5] for h in told.holders] == [h[:5] for h in record.holders]
    assert [w[:4] for w in told.queue] == [w[:4] for w in record.queue]
    assert (told.token, told.value, told.limit) == (record.token, record.value, record.limit)
    for was, holder in zip(record.holders, told.holders, strict=True):
        assert holder.expires_at == now + was.ttl
        if was.until is not None and holder.until is not None:
            assert holder.until - now >= was.until - old_now - 1e-6, "what max_hold left is left"
    for waited, waiter in zip(record.queue, told.queue, strict=True):
        assert waiter.expires_at - now == pytest.approx(PATIENCE_SECONDS)
        assert waiter.turn_at == (None if waited.turn_at is None else now)
    assert all(e.forget_at == now + RETENTION_SECONDS for e in told.ended)


def test_a_token_outlives_the_loss_of_its_counter() -> None:
    """Failover, eviction, retention: the record is gone, the wall clock is not."""
    ask = Acquire("n1", "a", "o", "lock", "exclusive", 10.0, False)
    first = apply(EMPTY, ask, 5.0, 1_700_000_000_000_000)
    assert isinstance(first.reply, Granted)
    second = apply(EMPTY, ask._replace(nonce="n2"), 6.0, 1_700_000_000_000_001)
    assert isinstance(second.reply, Granted)
    assert second.reply.token > first.reply.token
