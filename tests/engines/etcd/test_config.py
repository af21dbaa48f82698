"""URLs of etcd, and what failed calls mean."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import EngineUnavailable, InvalidArgument
from holdfast.core.effects import NotApplied, OutcomeUnknown
from holdfast.core.urls import parse_url
from holdfast.engines.etcd.config import Config, parse_config
from holdfast.engines.etcd.errors import (
    AuthTokenError,
    CompactedError,
    LeaseExistsError,
    LeaseNotFoundError,
    classify_error,
)
from holdfast.engines.etcd.keys import Keys
from holdfast.engines.etcd.retention import LENGTHS, PARTS, Retention, lease_id
from support import run_python

pytestmark = pytest.mark.timeless


def parsed(url: str, **given: Any) -> Config:
    return parse_config(parse_url(url), given)


def test_where_the_members_are() -> None:
    assert parsed("etcd://localhost").endpoints == ("localhost:2379",)
    assert parsed("etcd://a:1,b,[::1]:3,[::2]").endpoints == ("a:1", "b:2379", "[::1]:3", "[::2]:2379")
    assert parsed("etcd://a").prefix == "holdfast"
    assert parsed("etcd://a/team/locks/").prefix == "team/locks"


@pytest.mark.parametrize(
    "url", ["etcd://", "etcd://,", "etcd://a:x", "etcd://a:0", "etcd://a:70000", "etcd://a,,b", "etcd://::1"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgument, match=r"host|address"):
        holdfast.connect(url)


def test_protection() -> None:
    assert not parsed("etcd://a").tls
    assert parsed("etcd://a?tls=true").tls
    assert parsed("etcd://a", tls=True).tls
    assert parsed("etcd://a?ca=/x").tls
    options = parsed("etcd://a", ca="/ca", cert="/cert", key="/key")
    assert (options.tls, options.ca, options.cert, options.key) == (True, "/ca", "/cert", "/key")


@pytest.mark.parametrize(
    ("url", "given"),
    [
        ("etcd://a?tls=perhaps", {}),
        ("etcd://a?tls=false&ca=/x", {}),
        ("etcd://a?cert=/x", {}),
        ("etcd://a?key=/x", {}),
        ("etcd://a?ca=/x", {"ca": "/y"}),
        ("etcd://a", {"colour": "blue"}),
        ("etcd://a?colour=blue", {}),
        ("etcd://a", {"ca": 7}),
        ("etcd://user@a", {}),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(url: str, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        holdfast.connect(url, **given)


def test_secrets_are_not_shown() -> None:
    client = holdfast.connect("etcd://ann:geheim@a?ca=/x&cert=/y&key=/private")
    for told in (client.url, repr(client), repr(parsed("etcd://ann:geheim@a?cert=/y&key=/private"))):
        assert "geheim" not in told
        assert "private" not in told
    client.close()


@pytest.mark.realtime
def test_a_certificate_that_is_not_there_is_named() -> None:
    with (
        holdfast.connect("etcd://localhost:1?ca=/nowhere/ca.pem") as client,
        pytest.raises(EngineUnavailable, match=r"/nowhere/ca\.pem"),
    ):
        client.lock("x").acquire()


@pytest.mark.realtime
def test_a_missing_package_is_named() -> None:
    code = """
    import sys
    sys.modules["hpack"] = None
    import holdfast
    try:
        holdfast.connect("etcd://localhost")
    except holdfast.EngineUnavailable as error:
        print("told", error, flush=True)
    """
    with run_python(code) as child:
        assert "pip install 'holdfast[etcd]'" in child.expect("told")


@pytest.mark.parametrize(
    ("code", "details", "meaning"),
    [
        ("NEVER_SENT", "no connection", NotApplied),
        ("UNAVAILABLE", "Socket closed", OutcomeUnknown),
        ("UNAVAILABLE", "etcdserver: request timed out", OutcomeUnknown),
        ("UNAVAILABLE", "etcdserver: leader changed", OutcomeUnknown),
        ("UNAVAILABLE", "etcdserver: no leader", NotApplied),
        ("DEADLINE_EXCEEDED", "", OutcomeUnknown),
        ("CANCELLED", "", OutcomeUnknown),
        ("INTERNAL", "stream terminated", OutcomeUnknown),
        ("RESOURCE_EXHAUSTED", "etcdserver: too many requests", NotApplied),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", EngineUnavailable),
        ("NOT_FOUND", "etcdserver: requested lease not found", LeaseNotFoundError),
        ("FAILED_PRECONDITION", "etcdserver: lease already exists", LeaseExistsError),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", CompactedError),
        ("UNAUTHENTICATED", "etcdserver: invalid auth token", AuthTokenError),
        ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", AuthTokenError),
        ("INVALID_ARGUMENT", "etcdserver: user name is empty", EngineUnavailable),
        ("PERMISSION_DENIED", "etcdserver: permission denied", EngineUnavailable),
        ("UNIMPLEMENTED", "unknown service", EngineUnavailable),
    ],
)
def test_what_a_failure_means(code: str, details: str, meaning: type[Exception]) -> None:
    failure = classify_error(code, details)
    assert type(failure) is meaning
    assert str(failure)


def test_names_and_prefixes_survive_as_keys() -> None:
    keys = Keys("holdfast", "a/b")
    for name in ("x", "a/b", "100%", "é\x00", "x/t/x/", " "):
        assert keys.name_of(keys.folder(name) + b"t/x/n-1") == (name, b"t/x/n-1")
        start, end = keys.beginning_with(name)
        assert start <= keys.folder(name + "more") < end
        assert not start <= keys.folder("\U0010ffff" + name) < end
    assert Keys("holdfast", "a").names not in keys.names


def test_retention_is_shared_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients find the same lease by the clock alone; and there are never many of them."""
    granted: list[tuple[int, int]] = []
    now = [1_700_000_000.0]
    monkeypatch.setattr("holdfast.engines.etcd.retention.wall_seconds", lambda: now[0])

    class Talk:
        async def call(self, method: str, request: Any) -> None:
            granted.append((request.ID, request.TTL))

    def lease(retention: Retention, seconds: float) -> int:
        script = retention.lease(seconds)
        with pytest.raises(StopIteration) as end:
            script.send(None)
        found: int = end.value.value
        return found

    ann, bob = Retention(b"scope", Talk()), Retention(b"scope", Talk())  # type: ignore[arg-type]  # as far as it is used
    assert lease(ann, 86_400) == lease(bob, 86_400) == lease(ann, 80_000)
    assert len(granted) == 2
    assert lease(ann, 60) != lease(ann, 86_400)
    ids = set()
    for _ in range(4 * PARTS):
        ids.add(lease(ann, 86_400))
        now[0] += 86_400 / PARTS
    assert len(ids) == 4 * PARTS
    assert all(ttl >= LENGTHS[0] for _, ttl in granted)
    assert max(ttl for _, ttl in granted) < 1.2 * 86_400
    assert 0 < lease_id("x") < 2**63
