"""A random crowd of actors on each database, and the mistakes that it catches."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.crowd import Crowd
from actors.worlds import fresh_url
from holdfast.actors import messages, plans
from holdfast.errors import LockTimeout
from holdfast.queue import plans as queue_plans
from holdfast.queue.arguments import job_row
from support.thorough import THOROUGH


@pytest.mark.parametrize("seed", range(40 if THOROUGH else 2))
def test_a_random_crowd(url: str, seed: int) -> None:
    assert Crowd(url, seed).run() == []


def state_outside_the_transaction(patch: pytest.MonkeyPatch) -> None:
    def commit(session: Any, job: Any, address: Any, outcome: Any) -> Any:
        yield from queue_plans.atomically(session, plans.save(session, address, outcome))
        rest = dataclasses.replace(outcome, state=None)
        return (yield from queue_plans.atomically(session, plans._commit(session, job, address, rest)))

    patch.setattr(plans, "commit", commit)


def messages_outside_the_transaction(patch: pytest.MonkeyPatch) -> None:
    def commit(session: Any, job: Any, address: Any, outcome: Any) -> Any:
        for message in outcome.messages:
            yield from plans.put(session, message)
        rest = dataclasses.replace(outcome, messages=())
        return (yield from queue_plans.atomically(session, plans._commit(session, job, address, rest)))

    patch.setattr(plans, "commit", commit)


def messages_after_the_transaction(patch: pytest.MonkeyPatch) -> None:
    """Where the answer to the commit is lost, nobody sends them."""
    shipped = plans.commit

    def commit(session: Any, job: Any, address: Any, outcome: Any) -> Any:
        rest = dataclasses.replace(outcome, messages=())
        done = yield from shipped(session, job, address, rest)
        for message in outcome.messages[: job.id % 2]:
            yield from plans.put(session, message)
        return done

    patch.setattr(plans, "commit", commit)


def ids_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    shipped = plans._put_once
    patch.setattr(
        plans, "_put_once", lambda session, message: shipped(session, dataclasses.replace(message, id=None))
    )


def two_messages_of_a_key_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(messages, "job_row", lambda job: {**job_row(job), "asked_lane": 0})


def reply_before_commit(patch: pytest.MonkeyPatch) -> None:
    def commit(session: Any, job: Any, address: Any, outcome: Any) -> Any:
        early = dataclasses.replace(outcome, state=None, messages=())
        done = yield from queue_plans.atomically(session, plans._commit(session, job, address, early))
        threading.Event().wait(0.03)  # a mistake that a slow machine would show
        yield from queue_plans.atomically(session, plans.save(session, address, outcome))
        for message in outcome.messages:
            yield from plans.put(session, message)
        return done

    patch.setattr(plans, "commit", commit)


MUTANTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    state_outside_the_transaction,
    messages_outside_the_transaction,
    messages_after_the_transaction,
    ids_are_not_compared,
    two_messages_of_a_key_at_once,
    reply_before_commit,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_crowd_catches(
    mutant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    for seed in range(5):
        (folder := tmp_path / str(seed)).mkdir()
        try:
            noticed = bool(Crowd(fresh_url("sqlite", folder), seed, messages=12).run())
        except LockTimeout:  # one who asked got no reply: noticed, too
            noticed = True
        if noticed:
            return
    pytest.fail("it was not noticed")
