"""What a waiter leaves in the record is small, however much metadata it has."""

from __future__ import annotations

import pytest

from holdfast.engines.sqlite import shortcuts
from holdfast.engines.sqlite.codec import encode
from holdfast.rules import handoff
from holdfast.rules.record import EMPTY, WAITER_METADATA_MAX, Record, is_brief
from holdfast.rules.requests import Acquire, Granted, Queued, Release, Request

NOW = 1000.0
LONG = {"job": "x" * 4000}


def asks(nonce: str, **metadata: str) -> Acquire:
    return Acquire(nonce, nonce[0], f"host/1/{nonce}", "lock", "exclusive", 30.0, True, metadata=metadata)


def crowd(count: int, **metadata: str) -> Record:
    record = EMPTY
    for number in range(count + 1):
        record = handoff.apply(record, asks(f"w{number}", **metadata), NOW, 0).record
    assert len(record.queue) == count
    return record


@pytest.mark.parametrize("size", [0, 1, WAITER_METADATA_MAX - 1, WAITER_METADATA_MAX])
def test_what_is_brief(size: int) -> None:
    assert is_brief({"k": "v" * (size - 1)} if size else {})
    assert not is_brief({"k" * 10: "v" * (WAITER_METADATA_MAX - 9)})


def test_many_waiters_with_much_metadata_make_no_large_record() -> None:
    assert len(encode(crowd(200, **LONG))) < 200 * 300 + 5000
    assert len(encode(crowd(200, job="x" * 200))) < 200 * 600


def test_a_waiter_with_much_metadata_takes_the_lock_by_its_turn_and_has_all_of_it() -> None:
    record = crowd(1, **LONG)
    assert record.queue[0].wants is None
    step = handoff.apply(record, Release("w0"), NOW, 0)
    assert step.record.holders == ()
    assert [(wake.nonce, wake.handed) for wake in step.wake] == [("w1", None)]
    reply = handoff.apply(step.record, asks("w1", **LONG), NOW, 0).reply
    assert isinstance(reply, Granted)
    assert reply.metadata == LONG


def test_with_little_metadata_it_is_handed_the_lock() -> None:
    record = crowd(1, job="7")
    step = handoff.apply(record, Release("w0"), NOW, 0)
    assert (step.record.holders[0].nonce, step.record.holders[0].metadata) == ("w1", {"job": "7"})


def test_the_shortcut_leaves_it_to_the_rule() -> None:
    text = encode(crowd(2, job="7"))
    assert shortcuts.join_queue(text, asks("z", job="7"), NOW) is not None
    long: Request = asks("z", **LONG)
    assert isinstance(long, Acquire)
    assert shortcuts.join_queue(text, long, NOW) is None
    step = handoff.apply(crowd(2, job="7"), long, NOW, 0)
    assert isinstance(step.reply, Queued)
    assert step.record.queue[-1].wants is None
