"""A random crowd on every database, and the mistakes that it catches."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import holdfast.queue
from holdfast.queue import Queue
from queue_tests.crowd import Crowd
from support.thorough import THOROUGH


@pytest.mark.parametrize("seed", range(40 if THOROUGH else 2))
def test_a_random_crowd(url: str, queue: Queue, seed: int) -> None:
    assert Crowd(url, seed).run(queue) == []


MUTANTS = {
    "the token is not looked at": (
        ("fail", "finish", "release", "extend"),
        "AND token = :token AND state = 'running'",
        "AND state = 'running' AND :token = :token",
    ),
    "whatever runs is taken back": (("expired", "take_back"), "AND lease_until <= ", "AND 0.0 <= "),
    "the lane is never full": (("promote",), "  AND (SELECT count(*)", "  AND 0 * (SELECT count(*)"),
    "nobody is let in behind one that ended": (("promote",), "b.state = 'blocked'", "b.state = 'finished'"),
    "a put does not look who is there": (("put",), ">= capacity", ">= 1000"),
    "running jobs are claimed, too": (("claim",), "j.state = 'ready'", "j.state IN ('ready', 'running')"),
    "a due job of a lane does not enter it": (("make_ready",), "lane = 1 OR lane = 3", "lane = 4"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_crowd_catches(mutant: str, tmp_path: Path) -> None:
    names, right, wrong = MUTANTS[mutant]
    with holdfast.queue.connect(f"sqlite:///{tmp_path / 'queue.db'}?synchronous=normal") as queue:
        queue.install()
        texts = queue._store.database.texts
        made = dict(texts._made)
        for name in names:
            assert right in made[name], name
            made[name] = made[name].replace(right, wrong)
        mutated = dataclasses.replace(texts, _made=made)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("holdfast.queue.database.sqlite_texts", lambda: mutated)
            queue._store.database.texts = mutated
            url = queue._store.database.name + "?synchronous=normal"
            assert any(Crowd(url, seed, patience=2.0).run(queue) for seed in range(5))
