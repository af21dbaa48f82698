"""The rule in Lua, pair by pair of what is stored and what is presented; and mistakes in it that are seen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import redis

from holdfast.fencing.mark_text import mark_text
from holdfast.fencing.redis import DAYS_KEPT, fence_key
from holdfast.fencing.redis_scripts import fenced
from holdfast.fencing.rule import Mark, Refuse, after, decide
from support.servers import shared_redis, shared_valkey

pytestmark = [pytest.mark.realtime, pytest.mark.engine("redis")]

NOW = time.time_ns() // 1000
KEY = fence_key("pair by pair")

MARKS = [
    Mark(token, source, nonce, peers)
    for token, source, nonce, peers in product(
        [9, NOW, NOW + 1], ["", "s", "t"], ["", "a", "b"], [(), (NOW,), (9, NOW + 1)]
    )
]
STORED: list[Mark | None] = [None, *MARKS]


def disagreements(client: Any, script: bytes) -> Iterator[tuple[Mark | None, Mark]]:
    """Pairs of which the script makes something else than the rule."""
    sha = client.script_load(script)
    for stored in STORED:
        pipeline = client.pipeline(transaction=False)
        for mark in MARKS:
            if stored is None:
                pipeline.delete(KEY)
            else:
                pipeline.set(KEY, mark_text(stored))
            pipeline.evalsha(sha, 1, KEY, mark_text(mark))
            pipeline.get(KEY)
        answers = pipeline.execute(raise_on_error=False)
        for number, mark in enumerate(MARKS):
            decision = decide(stored, mark)
            expected = after(stored, decision)
            text = b"" if expected is None else mark_text(expected).encode()
            reply = [0, text] if isinstance(decision, Refuse) else [1]
            if answers[3 * number + 1 : 3 * number + 3] != [reply, text]:
                yield stored, mark


@pytest.fixture(params=["redis", "valkey"])
def client(request: pytest.FixtureRequest) -> Iterator[Any]:
    server = shared_redis() if request.param == "redis" else shared_valkey()
    with redis.Redis.from_url(server.url) as client:
        yield client


def test_every_pair(client: Any) -> None:
    assert list(disagreements(client, fenced("advance").text)) == []


MISTAKES = {
    "an equal text is looked at no further, whatever it is": ("stored ~= presented", "stored == presented"),
    "sources are not compared": ("source ~= had_source then", "false then"),
    "an unknown source is another one": ("source ~= '' and had_source ~= '' and source", "source"),
    "older ones pass": ("if number < had_number and not", "if false and not"),
    "equal ones are older": ("if number < had_number and not", "if number <= had_number and not"),
    "peers are not looked at": ("not string.find(", "true or not string.find("),
    "a part of a peer's number is a peer": ("',' .. token .. ','", "token"),
    "nonces are not compared": ("nonce ~= had_nonce then", "false then"),
    "a bare token takes the source away": ("source = had_source", "source = ''"),
    "a peer becomes the newest": ("if number < had_number or (number", "if (number"),
    "a bare token takes the nonce away": ("and not (had_nonce == '' and nonce ~= ''))", "and false)"),
    "the nonce is never learned": ("and not (had_nonce == '' and nonce ~= ''))", ")"),
    "nothing is stored": ("if newest ~= stored then", "if false then"),
    "numbers are printed": ("newest = '1:' .. token", "newest = '1:' .. tonumber(token)"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_seen(name: str) -> None:
    right, wrong = (each.encode() for each in MISTAKES[name])
    script = fenced("advance").text
    assert right in script
    with redis.Redis.from_url(shared_redis().url) as client:
        assert next(disagreements(client, script.replace(right, wrong)), None) is not None


def test_how_long_a_fence_is_kept_is_said_once() -> None:
    """In Lua, and in the words of a refusal."""
    assert f"RETENTION = {DAYS_KEPT * 86_400} " in fenced("advance").text.decode()
