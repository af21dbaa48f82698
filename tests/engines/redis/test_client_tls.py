"""How a live client protects its connections is carried over as a whole, or refused."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
import redis

import holdfast
from holdfast.engines.redis.live_client import config_from_client


def test_what_can_be_carried_over_is() -> None:
    client = redis.Redis(ssl=True, ssl_check_hostname=True, ssl_min_version=ssl.TLSVersion.TLSv1_3)
    tls = config_from_client(client, {}).tls
    assert tls is not None
    assert tls.verify_mode == ssl.CERT_REQUIRED
    assert tls.check_hostname
    assert tls.minimum_version == ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    "setting",
    [{"ssl_validate_ocsp": True}, {"ssl_validate_ocsp_stapled": True}, {"ssl_something_new": object()}],
)
def test_what_cannot_is_refused(setting: dict[str, Any]) -> None:
    client = redis.Redis(ssl=True)
    client.connection_pool.connection_kwargs.update(setting)
    with pytest.raises(holdfast.InvalidArgument, match="cannot carry over") as raised:
        holdfast.connect(client)
    assert next(iter(setting)) in str(raised.value)


def test_a_class_with_a_context_of_its_own_is_refused() -> None:
    class Pinned(redis.SSLConnection):
        """Makes its own context, which nobody else sees."""

    pool = redis.ConnectionPool(connection_class=Pinned)
    with pytest.raises(holdfast.InvalidArgument, match="cannot carry over") as raised:
        holdfast.connect(redis.Redis(connection_pool=pool))
    assert "Pinned" in str(raised.value)
