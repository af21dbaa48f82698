"""What a conversation makes of what a transport brings, without either."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.effects import OutcomeUnknown
from holdfast.core.urls import parse_url
from holdfast.engines.etcd import wire_pb2 as wire
from holdfast.engines.etcd.config import parse_config
from holdfast.engines.etcd.routing import ClusterChannel
from holdfast.engines.etcd.rpc import RpcError, UnaryCall

pytestmark = pytest.mark.timeless


def channel(switches: list[str]) -> ClusterChannel:
    options = parse_config(parse_url("etcd://a:1,b:2"), {})
    conversation = ClusterChannel(options, 3.0, lambda endpoint: f"connection to {endpoint}")
    conversation.on_switch = lambda: switches.append("switched")
    return conversation


def asked(script: Any) -> UnaryCall:
    op = script.send(None)
    assert isinstance(op, UnaryCall)
    return op


def test_a_stream_that_ends_before_every_keep_alive_was_confirmed() -> None:
    """None of them counts: each is given again, before the session is over."""
    script = channel([]).keep_alive((1, 2), 1.0)
    assert [request.ID for request in asked(script).requests] == [1, 2]
    with pytest.raises(OutcomeUnknown, match="ended the stream"):
        script.send([wire.LeaseKeepAliveResponse(ID=1, TTL=10)])


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"])
def test_a_stream_that_breaks_is_followed_by_one_to_the_next_member(code: str) -> None:
    switches: list[str] = []
    conversation = channel(switches)
    script = conversation.keep_alive((1,), 1.0)
    assert asked(script).connection == "connection to a:1"
    with pytest.raises(OutcomeUnknown):
        script.throw(RpcError(code, "it broke"))
    assert switches == ["switched"]
    assert asked(conversation.keep_alive((1,), 1.0)).connection == "connection to b:2"
