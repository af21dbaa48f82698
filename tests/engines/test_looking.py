"""Looking for an answer before sleeping for it (runtime/adaptive_spin.py)."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator

import pytest

from holdfast.runtime import adaptive_spin
from holdfast.runtime.adaptive_spin import FAILED_SPINS_MAX, PROBE_EVERY, AdaptiveSpin


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def poll_of(descriptor: int) -> select.poll:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return poll


def test_what_is_there_is_seen(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"!")
    assert AdaptiveSpin().spin_poll(poll_of(pipe[0])) == [(pipe[0], select.POLLIN)]


def test_what_comes_while_we_look_is_seen(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Others may run between two looks: so also the one we wait for, where there is but one processor."""
    monkeypatch.setattr(adaptive_spin, "SPIN_SECONDS", 60.0)
    monkeypatch.setattr(adaptive_spin, "yield_processor", lambda: os.write(pipe[1], b"!"))
    assert AdaptiveSpin().spin_poll(poll_of(pipe[0]))


def test_a_look_in_vain_ends(pipe: tuple[int, int]) -> None:
    assert AdaptiveSpin().spin_poll(poll_of(pipe[0])) == []


def test_where_it_is_in_vain_it_is_left_off_and_tried_now_and_then() -> None:
    looks = AdaptiveSpin()
    looked = [looks.next_deadline() > 0.0 for _ in range(4 * PROBE_EVERY)]
    assert all(looked[:FAILED_SPINS_MAX])
    assert looked[FAILED_SPINS_MAX:].count(True) == 3


def test_one_answer_that_came_soon_and_it_is_worth_it_again(pipe: tuple[int, int]) -> None:
    looks = AdaptiveSpin()
    while looks.next_deadline():
        pass
    looks.found()
    assert looks.next_deadline() > time.monotonic()
    while looks.next_deadline():
        pass
    os.write(pipe[1], b"!")
    while not looks.spin_poll(poll_of(pipe[0])):
        pass
    assert looks.next_deadline() > time.monotonic()
