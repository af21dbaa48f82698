"""What a conversation makes of what a transport brings, without either."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.effects import OutcomeUnknown
from holdfast.core.urls import parse_url
from holdfast.engines.etcd import wire_pb2 as wire
from holdfast.engines.etcd.calls import Failed, Send
from holdfast.engines.etcd.conversation import Conversation
from holdfast.engines.etcd.options import parse_options

pytestmark = pytest.mark.timeless


def talk(switches: list[str]) -> Conversation:
    options = parse_options(parse_url("etcd://a:1,b:2"), {})
    conversation = Conversation(options, 3.0, lambda endpoint: f"connection to {endpoint}")
    conversation.switched = lambda: switches.append("switched")
    return conversation


def asked(script: Any) -> Send:
    op = script.send(None)
    assert isinstance(op, Send)
    return op


def test_a_stream_that_ends_before_every_sign_of_life_was_heard() -> None:
    """None of them counts: each is given again, before the session is over."""
    script = talk([]).keep_alive((1, 2), 1.0)
    assert [request.ID for request in asked(script).requests] == [1, 2]
    with pytest.raises(OutcomeUnknown, match="ended the stream"):
        script.send([wire.LeaseKeepAliveResponse(ID=1, TTL=10)])


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"])
def test_a_stream_that_breaks_is_followed_by_one_to_the_next_member(code: str) -> None:
    switches: list[str] = []
    conversation = talk(switches)
    script = conversation.keep_alive((1,), 1.0)
    assert asked(script).connection == "connection to a:1"
    with pytest.raises(OutcomeUnknown):
        script.throw(Failed(code, "it broke"))
    assert switches == ["switched"]
    assert asked(conversation.keep_alive((1,), 1.0)).connection == "connection to b:2"
