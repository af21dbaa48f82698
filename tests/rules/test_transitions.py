"""Whatever is asked, in whatever order: the promises of the rules hold at every step."""

from __future__ import annotations

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from holdfast.rules import handoff
from holdfast.rules.queueing import drop_clients, give_turns, next_event_at, settle
from holdfast.rules.record import EMPTY, Record
from holdfast.rules.requests import Acquire, Granted, Inspect, Request
from holdfast.rules.transitions import ADMITS, apply, apply_in_order
from rules.judge import Judge
from rules.moves import KINDS, Move, acquires, aimed, long_moves, moves, play, shortest
from support.thorough import examples


def record_after(sequence: list[Move], hands_over: bool) -> tuple[Record, float]:
    """A record such as sequences leave behind, unsettled."""
    record, now = EMPTY, 1000.0
    rule = handoff.apply if hands_over else apply
    for move in sequence:
        now += move.pause
        record = rule(record, aimed(move, record), now, move.wall_us, move.dead).record
    return record, now


records = st.builds(
    lambda kind, seed, length, hands_over: record_after(long_moves(kind, seed, length), hands_over),
    st.sampled_from(KINDS),
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.booleans(),
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_keeps_every_promise(kind: str) -> None:
    @settings(max_examples=examples(100))
    @given(moves(kind))
    def check(sequence: list[Move]) -> None:
        play(Judge(), sequence)

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_long_sequences_keeps_every_promise(kind: str) -> None:
    @settings(max_examples=examples(250), phases=[Phase.explicit, Phase.reuse, Phase.generate])
    @given(st.integers(0, 2**32))
    @example(142255515)  # a writer that was exported becomes a reader, which is then adopted
    def check(seed: int) -> None:
        sequence = long_moves(kind, seed)
        try:
            play(Judge(), sequence)
        except AssertionError:
            play(Judge(), shortest(Judge, sequence))
            raise

    check()


@settings(max_examples=examples(100))
@given(records, st.lists(st.floats(0.0, 40.0), min_size=2, max_size=4))
def test_time_passes_the_same_however_often_it_is_looked_at(
    state: tuple[Record, float], pauses: list[float]
) -> None:
    record, now = state
    admits = ADMITS[record.kind]
    looked = record
    for pause in pauses:
        now += pause
        looked = settle(looked, now, admits)
    assert looked == settle(record, now, admits)
    assert settle(looked, now, admits) is looked


@settings(max_examples=examples(100))
@given(records, st.floats(0.0, 40.0))
def test_what_is_settled_has_nothing_overdue(state: tuple[Record, float], pause: float) -> None:
    record, now = state
    settled = settle(record, now + pause, ADMITS[record.kind])
    event = next_event_at(settled)
    assert event is None or event > now + pause
    Judge()._check_turns(settled)


@settings(max_examples=examples(100))
@given(records, st.floats(0.0, 10.0))
def test_dealing_turns_twice_changes_nothing(state: tuple[Record, float], pause: float) -> None:
    record, now = state
    settled = settle(record, now, ADMITS[record.kind])
    assert give_turns(settled, now + pause, ADMITS[record.kind]) == settled


@settings(max_examples=examples(100))
@given(records, st.sets(st.sampled_from("abc")))
def test_the_dead_leave_nothing_behind(state: tuple[Record, float], dead: set[str]) -> None:
    record, now = state
    admits = ADMITS[record.kind]
    record = settle(record, now, admits)
    after = drop_clients(record, dead, now, admits)
    assert [h.nonce for h in after.holders] == [h.nonce for h in record.holders if h.client not in dead]
    assert [w.nonce for w in after.queue] == [w.nonce for w in record.queue if w.client not in dead]
    assert [w.nonce for w in after.watchers] == [w.nonce for w in record.watchers if w.client not in dead]
    Judge()._check_turns(after)
    clients = {h.client for h in record.holders} | {w.client for w in record.queue}
    if not (clients | {w.client for w in record.watchers}) & dead:
        assert after is record


@settings(max_examples=examples(100))
@given(records, st.floats(0.0, 40.0))
def test_looking_stores_nothing(state: tuple[Record, float], pause: float) -> None:
    record, now = state
    assert apply(record, Inspect(), now + pause, 0).record is record


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.sampled_from("xyz"), acquires("lock")), min_size=1, max_size=5),
    st.booleans(),
    records,
)
def test_several_names_are_the_same_as_one_after_another(
    steps: list[tuple[str, Acquire]], stop_when_refused: bool, state: tuple[Record, float]
) -> None:
    record, now = state
    present = {"x": record}
    asked: list[tuple[str, Request]] = list(steps)
    done = apply_in_order(present, asked, now, 0, stop_when_refused)
    expected: dict[str, Record] = dict(present)
    for (name, request), step in zip(asked, done, strict=False):
        assert step == apply(expected.get(name, EMPTY), request, now, 0)
        expected[name] = step.record
    assert present == {"x": record}, "what was passed in is left alone"
    refused = [i for i, step in enumerate(done) if not isinstance(step.reply, Granted)]
    if stop_when_refused and refused:
        assert refused == [len(done) - 1], "it ends with the first that is not granted"
    else:
        assert len(done) == len(steps)
