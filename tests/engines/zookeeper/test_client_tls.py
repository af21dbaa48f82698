"""How a live client protects its connections is carried over as a whole, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler

import holdfast
from holdfast.engines.zookeeper.config import parse_client


def test_what_can_be_carried_over_is() -> None:
    client = KazooClient("h:1", use_ssl=True, ca="/ca.crt", verify_certs=True, check_hostname=True)
    more = parse_client(client, {}).more
    assert more["use_ssl"]
    assert more["ca"] == "/ca.crt"
    assert more["verify_certs"]
    assert more["check_hostname"]


def test_a_handler_with_a_context_of_its_own_is_refused() -> None:
    class Pinned(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no type hints
        """Makes its own context, which nobody else sees."""

        def create_connection(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    client = KazooClient("h:1", use_ssl=True, handler=Pinned())
    with pytest.raises(holdfast.InvalidArgument, match="cannot carry over") as raised:
        holdfast.connect(client)
    assert "Pinned" in str(raised.value)
    plain = KazooClient("h:1", handler=Pinned())
    assert not parse_client(plain, {}).more["use_ssl"]
