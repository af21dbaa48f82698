"""``adopt`` of a text that is no exported lease: refused, and nothing else happens."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

import pytest

from api.spy import SpyWorld
from contract.harness import held
from holdfast import InvalidArgument


def _changed(text: str, **changes: Any) -> str:
    prefix, _, payload = text.partition(":")
    fields = {**json.loads(base64.urlsafe_b64decode(payload)), **changes}
    return prefix + ":" + base64.urlsafe_b64encode(json.dumps(fields).encode()).decode()


async def test_the_engine_is_not_asked(world: SpyWorld) -> None:
    ann, giver = world.actor(), world.client()
    text = await ann(held(await ann(giver.lock("x").acquire)).export)
    taker = world.client()
    before, threads = len(world.spy.calls), threading.active_count()
    nonces: list[Any] = ["\ud800", "\ud800-1", "é-é", "../x", "x" * 10_000, "", 7, None, [[]], "\x00" * 16]
    for nonce in nonces:
        with pytest.raises(InvalidArgument, match="export"):
            await ann(taker.adopt, _changed(text, nonce=nonce))
    damaged: list[dict[str, Any]] = [
        {"name": {}},
        {"kind": []},
        {"ttl": True},
        {"limit": -1},
        {"limit": 1.5},
        {"namespace": ""},
    ]
    for bad in damaged:
        with pytest.raises(InvalidArgument, match="export"):
            await ann(taker.adopt, _changed(text, **bad))
    assert len(world.spy.calls) == before
    assert threading.active_count() == threads
    (await ann(taker.adopt, text)).check()
