"""The configuration of the Redis engine: read from a URL, checked before any I/O, shown without secrets.

URLs::

    redis://[user:password@]host[:port][/db]
    rediss://…                                   the same over TLS
    redis+sentinel://[user:password@]s1:26379,s2:26379[/db]?service=NAME
    redis+cluster://[user:password@]h1:6379,h2:6379

Options go in the query string or as keyword arguments of ``connect``:

``username``, ``password`` The same as in the URL, for programs that keep secrets apart from URLs.
``connections`` Threads: the largest number of connections for commands to each server (3). ``wait_replicas``,
``wait_timeout`` A grant counts once this many replicas have acknowledged it within this many seconds (1).
Otherwise the client releases it. ``source`` The name of this deployment in fencing tokens. Without it the
first client stores a random id in the database. A server that loses all its data loses that id too, and
guards then refuse the tokens that follow. ``service``, ``sentinel_username``, ``sentinel_password`` Sentinel
only: the name of the master, and the login at the Sentinels themselves. ``ssl`` ``true``: use TLS with
Sentinel and Cluster. ``ssl_ca_certs``, ``ssl_ca_path``, ``ssl_certfile``, ``ssl_keyfile`` Files of
certificates, as for redis-py. ``ssl_cert_reqs``, ``ssl_check_hostname`` ``required`` and ``true`` are the
defaults; ``none`` and ``false`` turn the check off.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...core.urls import URL
from ...errors import InvalidArgument
from ..resp.config import (
    DEFAULT_PORT,
    TLS_OPTIONS,
    Address,
    Deployment,
    Login,
    ServerConfig,
    integer_option,
    merge_options,
    parse_address,
    parse_credentials,
    parse_database,
    parse_tls,
    seconds_option,
    text_option,
)

__all__ = ["DEPLOYMENTS", "ENGINE_OPTIONS", "RedisConfig", "config_from_url", "parse_engine_options"]

DEPLOYMENTS: Final[Mapping[str, Deployment]] = {
    "redis": "single",
    "rediss": "single",
    "redis+sentinel": "sentinel",
    "redis+cluster": "cluster",
}

DEFAULT_SENTINEL_PORT: Final = 26379
DEFAULT_CONNECTIONS: Final = 3
DEFAULT_WAIT_SECONDS: Final = 1.0
REPLICAS_MAX: Final = 1000

ENGINE_OPTIONS: Final = ("connections", "wait_replicas", "wait_timeout", "source")
COMMON_OPTIONS: Final = ("username", "password", *ENGINE_OPTIONS)
SENTINEL_OPTIONS: Final = ("service", "sentinel_username", "sentinel_password")


@dataclass(frozen=True, slots=True, repr=False)
class RedisConfig(ServerConfig):
    """A server, or the Sentinels or a Cluster, and the options of the engine."""

    service: str = ""
    sentinel_login: Login = field(default_factory=Login)
    sentinel_tls: ssl.SSLContext | None = None
    connections: int = DEFAULT_CONNECTIONS
    wait_replicas: int = 0
    wait_seconds: float = DEFAULT_WAIT_SECONDS
    source: str | None = None


def config_from_url(url: URL, options: Mapping[str, Any]) -> RedisConfig:
    """The configuration from a URL and the keyword arguments of ``connect``."""
    deployment = DEPLOYMENTS[url.scheme]
    given = merge_options(url, options, _known_options(url.scheme))
    username, password = parse_credentials(url, given)
    tls = parse_tls(given, "rediss:// (Sentinel and Cluster: add ssl=true)", url.scheme == "rediss")
    service = text_option(given, "service") or ""
    if deployment == "sentinel" and not service:
        raise InvalidArgument("redis+sentinel:// needs the name of the master: write …?service=NAME")
    sentinel_login = Login(text_option(given, "sentinel_username"), text_option(given, "sentinel_password"))
    return RedisConfig(
        deployment=deployment,
        addresses=_addresses(url, DEFAULT_SENTINEL_PORT if deployment == "sentinel" else DEFAULT_PORT),
        database=parse_database(url, deployment),
        login=Login(username, password),
        tls=tls,
        service=service,
        sentinel_login=sentinel_login,
        sentinel_tls=tls,
        **parse_engine_options(given),
    )


def parse_engine_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a live client can be combined with, too."""
    return {
        "connections": integer_option(given, "connections", DEFAULT_CONNECTIONS, least=1, most=64),
        "wait_replicas": integer_option(given, "wait_replicas", 0, least=0, most=REPLICAS_MAX),
        "wait_seconds": seconds_option(given, "wait_timeout", DEFAULT_WAIT_SECONDS),
        "source": text_option(given, "source"),
    }


def _known_options(scheme: str) -> tuple[str, ...]:
    if scheme == "redis":
        return COMMON_OPTIONS
    if scheme == "rediss":
        return COMMON_OPTIONS + TLS_OPTIONS
    return (
        COMMON_OPTIONS
        + TLS_OPTIONS
        + (("ssl", *SENTINEL_OPTIONS) if scheme == "redis+sentinel" else ("ssl",))
    )


def _addresses(url: URL, port: int) -> tuple[Address, ...]:
    addresses = tuple(parse_address(part, port, url.scheme) for part in (url.hosts or "localhost").split(","))
    if len(addresses) > 1 and url.scheme in ("redis", "rediss"):
        raise InvalidArgument(
            f"{url.scheme}:// is one server: several are redis+sentinel://, redis+cluster:// or redlock://"
        )
    return addresses
