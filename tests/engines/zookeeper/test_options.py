"""URLs: what they say, what is refused before anything is sent, and what is never shown."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import holdfast
from holdfast import InvalidArgument
from holdfast.core.urls import parse_url
from holdfast.engines.zookeeper.options import parse_options
from support import run_python

pytestmark = pytest.mark.timeless

SECRET = "s3cret"


def test_everything_has_a_default() -> None:
    options = parse_options(parse_url("zookeeper://localhost"), {})
    assert (options.hosts, options.prefix, options.session_timeout, options.auth) == (
        ("localhost:2181",),
        "/holdfast",
        30.0,
        (),
    )


def test_everything_can_be_said() -> None:
    url = "zookeeper://me:s3cret@one,two:2182,[::1]:2183,[::2]/apps/locks/?session_timeout=2.5"
    options = parse_options(parse_url(url), {})
    assert options.hosts == ("one:2181", "two:2182", "[::1]:2183", "[::2]:2181")
    assert (options.prefix, options.session_timeout) == ("/apps/locks", 2.5)
    assert options.auth == (("digest", "me:s3cret"),)
    assert parse_options(parse_url("zookeeper://one"), {"session_timeout": 3}).session_timeout == 3
    assert parse_options(parse_url("zookeeper://one?session_timeout=1m30s"), {}).session_timeout == 90
    given = {"session_timeout": timedelta(seconds=8)}
    assert parse_options(parse_url("zookeeper://one"), given).session_timeout == 8


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("zookeeper://", "host"),
        ("zookeeper://,", "host"),
        ("zookeeper://one:port", "address"),
        ("zookeeper://one:0", "address"),
        ("zookeeper://::1", "brackets"),
        ("zookeeper://one/zookeeper", "own"),
        ("zookeeper://one/a//b", "node"),
        ("zookeeper://one/a/../b", "node"),
        ("zookeeper://one/a%00", "node"),
        ("zookeeper://one?ttl=3", "ttl"),
        ("zookeeper://one?session_timeout=soon", "session_timeout"),
        ("zookeeper://one?session_timeout=0", "session_timeout"),
        ("zookeeper://one?session_timeout=-1", "session_timeout"),
        ("zookeeper://one?session_timeout=nan", "session_timeout"),
        ("zookeeper://one?session_timeout=1e9", "session_timeout"),
        ("zookeeper://one?tls=perhaps", "tls"),
        ("zookeeper://one?tls=off&ca=/x.pem", "tls"),
        ("zookeeper://one?cert=/x.pem", "key"),
        ("zookeeper://me@one", "password"),
        ("zookeeper://:s3cret@one", "user"),
        ("zookeeper://a%3Ab:s3cret@one", "user"),
    ],
)
def test_what_means_nothing_is_refused(url: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told) as refused:
        holdfast.connect(url)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("given", [{"ttl": 3}, {"session_timeout": True}, {"session_timeout": None}])
def test_so_it_is_in_the_call(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        holdfast.connect("zookeeper://one", **given)


def test_once_is_enough() -> None:
    with pytest.raises(InvalidArgument, match="once"):
        holdfast.connect("zookeeper://one?session_timeout=3", session_timeout=3)


def test_secrets_are_not_shown() -> None:
    url = parse_url(f"zookeeper://me:{SECRET}@one")
    client = holdfast.connect(f"zookeeper://me:{SECRET}@one")
    for shown in (repr(client), str(client), repr(parse_options(url, {})), client._engine.url):
        assert SECRET not in shown
    client.close()


@pytest.mark.realtime
def test_without_kazoo_it_is_said_what_to_install() -> None:
    code = """
        import sys
        sys.modules["kazoo"] = None
        import holdfast
        try:
            holdfast.connect("zookeeper://localhost")
        except holdfast.EngineUnavailable as error:
            print("told", error)
    """
    with run_python(code) as child:
        assert "pip install 'holdfast[zookeeper]'" in child.expect("told")
