"""A random crowd on every database, and the mistakes that it catches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast.queue
from holdfast.queue import Queue
from holdfast.queue.texts import sqlite_texts
from queue_tests import test_jobs
from queue_tests.crowd import Crowd
from support.thorough import THOROUGH


@pytest.mark.parametrize("seed", range(40 if THOROUGH else 2))
def test_a_random_crowd(url: str, queue: Queue, seed: int) -> None:
    assert Crowd(url, seed).run(queue) == []


MUTANTS = {
    "whatever runs is taken back": (("expired", "take_back"), "AND lease_until <= ", "AND 0.0 <= "),
    "the lane is never full": (("promote",), "  AND (SELECT count(*)", "  AND 0 * (SELECT count(*)"),
    "nobody is let in behind one that ended": (("promote",), "b.state = 'blocked'", "b.state = 'finished'"),
    "a put does not look who is there": (("put",), ">= capacity", ">= 1000"),
    "running jobs are claimed, too": (("claim",), "j.state = 'ready'", "j.state IN ('ready', 'running')"),
    "a due job of a lane does not enter it": (("make_ready",), "lane = 1 OR lane = 3", "lane = 4"),
}


@contextmanager
def mutated_queue(folder: Path, names: Iterable[str], right: str, wrong: str) -> Iterator[Queue]:
    """A queue whose statements are changed, for this one and for those connected to its URL meanwhile."""
    texts = sqlite_texts()
    made = dict(texts._made)
    for name in names:
        assert right in made[name], name
        made[name] = made[name].replace(right, wrong)
    mutated = dataclasses.replace(texts, _made=made)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.queue.database.sqlite_texts", lambda: mutated)
        with holdfast.queue.connect(f"sqlite:///{folder / 'queue.db'}?synchronous=normal") as queue:
            queue.install()
            yield queue


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_crowd_catches(mutant: str, tmp_path: Path) -> None:
    with mutated_queue(tmp_path, *MUTANTS[mutant]) as queue:
        url = queue._store.database.name + "?synchronous=normal"
        assert any(Crowd(url, seed, patience=2.0).run(queue) for seed in range(25))


def test_a_token_that_nobody_looks_at_is_noticed(tmp_path: Path) -> None:
    names = ("fail", "finish", "release", "extend")
    with (
        mutated_queue(tmp_path, names, "AND token = :token", "AND :token = :token") as queue,
        pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"),
    ):
        test_jobs.test_a_zombie_is_refused(queue)
