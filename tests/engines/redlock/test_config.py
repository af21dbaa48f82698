"""URLs and options: what they mean, and what is refused before anything is sent."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import InvalidArgument
from holdfast.core.urls import parse_url
from holdfast.engines.redlock.config import RedlockConfig, config_from_url
from holdfast.engines.resp.config import Address

pytestmark = pytest.mark.timeless


def settings(url: str, **options: object) -> RedlockConfig:
    return config_from_url(parse_url(url), options)


def test_what_is_there_when_nothing_is_said() -> None:
    chosen = settings("redlock://a,b:1,[::1]:2")
    assert chosen.addresses == (Address("a", 6379), Address("b", 1), Address("::1", 2))
    assert chosen.labels == ("a:6379", "b:1", "[::1]:2")
    assert (chosen.node_seconds, chosen.drift) == (0.05, 0.01)
    assert (chosen.retry_seconds, chosen.jitter_seconds) == (0.2, 0.2)
    assert (chosen.initialises, chosen.connections) == (True, 3)
    assert {(node.database, node.login.password) for node in chosen.nodes} == {(0, None)}


def test_options_in_the_url_or_beside_it() -> None:
    chosen = settings(
        "redlock://app:s%40cret@a,b,c/3?node_timeout=100ms&retry_delay=1s&init=manual&drift=0.02"
    )
    assert (chosen.node_seconds, chosen.retry_seconds, chosen.drift) == (0.1, 1.0, 0.02)
    assert not chosen.initialises
    assert {(each.database, each.login.username, each.login.password) for each in chosen.nodes} == {
        (3, "app", "s@cret")
    }
    beside = settings("redlock://a,b,c", node_timeout=0.3, retry_jitter=0, password="secret", connections=7)
    assert (beside.node_seconds, beside.jitter_seconds, beside.connections) == (0.3, 0.0, 7)
    assert "secret" not in repr(beside)
    assert "s@cret" not in repr(chosen)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redlock://", "needs its nodes"),
        ("redlock://a", "at least 3 independent servers.*redis://"),
        ("redlock://a,b", "at least 3"),
        ("redlock://a,b,c,d", "odd number of nodes: 4 bear no more failures than 3"),
        ("redlock://a,b,a", "a:6379 is given twice"),
        ("redlock://a,b:6379,c,b", "b:6379 is given twice"),
        ("redlock://a,,b", "host that cannot be parsed"),
        ("redlock://" + ",".join(f"h{n}" for n in range(33)), "up to 31 nodes"),
        ("redlock://a,b,c:0", "port"),
        ("redlock://a,b,c/x", "number of a database"),
        ("redlock://a,b,c?init=perhaps", "auto"),
        ("redlock://a,b,c?node_timeout=0", "node_timeout"),
        ("redlock://a,b,c?node_timeout=2m", "node_timeout"),
        ("redlock://a,b,c?retry_delay=nan", "retry_delay"),
        ("redlock://a,b,c?drift=0.5", "drift"),
        ("redlock://a,b,c?drift=much", "drift"),
        ("redlock://a,b,c?connections=0", "connections"),
        ("redlock://a,b,c?quorum=2", "no option 'quorum'"),
        ("redlock://user@a,b,c", "password"),
    ],
)
def test_what_is_refused_before_anything_is_sent(url: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        holdfast.connect(url)
