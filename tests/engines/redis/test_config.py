"""URLs and options: what they mean, and what is refused before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import InvalidArgument
from holdfast.core.urls import parse_url
from holdfast.engines.redis.config import RedisConfig, config_from_url
from holdfast.engines.resp.config import Address

pytestmark = pytest.mark.timeless


def settings(url: str, **options: object) -> RedisConfig:
    return config_from_url(parse_url(url), options)


def test_a_server_by_its_address() -> None:
    assert settings("redis://").addresses == (Address("localhost", 6379),)
    assert settings("redis://example.org").addresses == (Address("example.org", 6379),)
    assert settings("redis://example.org:7000/3").database == 3
    assert settings("redis://[::1]:7000").addresses == (Address("::1", 7000),)
    assert settings("redis://[::1]").addresses == (Address("::1", 6379),)
    assert str(Address("::1", 6379)) == "[::1]:6379"
    assert str(Address("/run/redis.sock", 0)) == "/run/redis.sock"


def test_several_where_there_are_several() -> None:
    chosen = settings("redis+sentinel://a,b:1,[::1]:2/4?service=main")
    assert chosen.addresses == (Address("a", 26379), Address("b", 1), Address("::1", 2))
    assert (chosen.deployment, chosen.service, chosen.database) == ("sentinel", "main", 4)
    assert settings("redis+cluster://a,b:1").addresses == (Address("a", 6379), Address("b", 1))


def test_users_and_passwords_in_the_url_or_beside_it() -> None:
    login = settings("redis://app:s%40cret@h").login
    assert (login.username, login.password) == ("app", "s@cret")
    assert settings("redis://:secret@h").login.username is None
    login = settings("redis://h", username="app", password="secret").login
    assert (login.username, login.password) == ("app", "secret")
    login = settings("redis+sentinel://h?service=m", sentinel_password="secret").sentinel_login
    assert (login.username, login.password) == (None, "secret")


def test_options_in_the_url_or_beside_it() -> None:
    chosen = settings("redis://h?wait_replicas=2&wait_timeout=0.5&connections=1&source=shop")
    assert (chosen.wait_replicas, chosen.wait_seconds) == (2, 0.5)
    assert (chosen.connections, chosen.source) == (1, "shop")
    assert settings("redis://h", wait_replicas=2).wait_replicas == 2


def test_tls_verifies_by_default() -> None:
    assert settings("redis://h").tls is None
    tls = settings("rediss://h").tls
    assert tls is not None
    assert tls.check_hostname
    lax = settings("rediss://h?ssl_cert_reqs=none").tls
    assert lax is not None
    assert not lax.check_hostname
    assert settings("redis+cluster://h?ssl=true").tls is not None
    chosen = settings("redis+sentinel://h?service=m&ssl=true")
    assert chosen.tls is not None
    assert chosen.sentinel_tls is not None


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://a,b", "one server"),
        ("redis://h:port", "port"),
        ("redis://h:70000", "port"),
        ("redis://::1", "cannot be parsed"),
        ("redis://h/name", "number of a database"),
        ("redis://user@h", "needs a password"),
        ("redis://h?ssl_ca_certs=/x", "no option"),
        ("redis://h?nonsense=1", "no option"),
        ("redis://h?connections=0", "connections is a whole number"),
        ("redis://h?connections=many", "connections is a whole number"),
        ("redis://h?wait_replicas=-1", "wait_replicas is a whole number"),
        ("redis://h?wait_timeout=nan", "wait_timeout is a number of seconds"),
        ("redis://h?wait_timeout=0", "wait_timeout is a number of seconds"),
        ("rediss://h?ssl_cert_reqs=maybe", "required"),
        ("rediss://h?ssl_check_hostname=maybe", "true or false"),
        ("rediss://h?ssl_ca_certs=/nowhere/ca.pem", "certificates cannot be used"),
        ("redis+sentinel://h", "service=NAME"),
        ("redis+sentinel://h?service=m&ssl_ca_certs=/x", "needs TLS"),
        ("redis+cluster://h/1", "only database 0"),
        ("redis+cluster://h?service=m", "no option"),
    ],
)
def test_what_cannot_be_meant_is_refused(url: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        settings(url)
    with pytest.raises(InvalidArgument, match=told):
        holdfast.connect(url)


def test_twice_is_once_too_often() -> None:
    with pytest.raises(InvalidArgument, match="give it once"):
        settings("redis://h?source=a", source="b")
    with pytest.raises(InvalidArgument, match="give it once"):
        settings("redis://:a@h", password="b")
    with pytest.raises(InvalidArgument, match="no option 'ssl_ca_certs': write rediss://"):
        settings("redis://h", ssl_ca_certs="/x")


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    url = "redis+sentinel://app:secret@h/0?service=m&sentinel_password=secret"
    shown = repr(settings(url)) + repr(settings(url).login) + repr(settings(url, username=None))
    with holdfast.connect(url) as client:
        shown += repr(client) + client.url
    assert "secret" not in shown
    assert "service=m" in shown
