"""The configuration of the Redlock engine: the nodes and their time limits, checked before any I/O.

    redlock://[user:password@]h1:6379,h2:6379,h3:6379[/db]

An odd number of independent servers, at least three. Options go in the query string or as keyword arguments
of ``connect``; durations are written ``50ms``, ``2s`` or as a number of seconds:

``node_timeout`` (50ms) The time limit of one round of requests to the nodes. ``drift`` (0.01) How much faster
than the client's clock the clock of a node may run: 0.01 is one percent. ``retry_delay`` (200ms),
``retry_jitter`` (200ms) The first pause of a waiter between two tries (it grows up to five times that), and
the random part that is added to each pause. ``init`` (auto) ``manual``: nodes that are all empty are made a
set by ``holdfast redlock init``, not by the first client. ``connections`` (3) Threads: the largest number of
connections to each node. One more connection is for renewals, and another one for hinted handoff while there
is any. ``username``, ``password`` The same as in the URL, for programs that keep secrets apart from URLs. All
nodes have the same. ``ssl`` (false) ``true``: use TLS with all nodes. The certificate of each node is
verified, and must be for the name or the address of the node in the URL. ``ssl_ca_certs``, ``ssl_ca_path``,
``ssl_certfile``, ``ssl_keyfile`` With ``ssl``: files of certificates, as for ``rediss://``.
``ssl_cert_reqs``, ``ssl_check_hostname`` ``required`` and ``true`` are the defaults; ``none`` and ``false``
turn the check off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...core.durations import seconds_in
from ...core.urls import URL
from ...errors import InvalidArgument
from ..resp.config import (
    TLS_OPTIONS,
    Address,
    Login,
    ServerConfig,
    integer_option,
    merge_options,
    parse_address,
    parse_credentials,
    parse_database,
    parse_tls,
)

__all__ = ["RedlockConfig", "config_from_url"]

NODES_MIN: Final = 3
NODES_MAX: Final = 31

OPTIONS: Final = (
    "connections",
    "drift",
    "init",
    "node_timeout",
    "password",
    "retry_delay",
    "retry_jitter",
    "ssl",
    "username",
    *TLS_OPTIONS,
)


@dataclass(frozen=True, slots=True, repr=False)
class RedlockConfig:
    """The nodes and all options. The repr shows no secret."""

    nodes: tuple[ServerConfig, ...]
    """How to reach each node."""
    node_seconds: float
    drift: float
    retry_seconds: float
    jitter_seconds: float
    initialises: bool
    connections: int

    def __repr__(self) -> str:
        return f"<RedlockSettings {', '.join(self.labels)}>"

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple([each.addresses[0] for each in self.nodes])

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(map(str, self.addresses))


def config_from_url(url: URL, options: Mapping[str, Any]) -> RedlockConfig:
    given = merge_options(url, options, OPTIONS)
    username, password = parse_credentials(url, given)
    login = Login(username, password)
    database = parse_database(url, "single")
    tls = parse_tls(given, "redlock://…?ssl=true as well")
    return RedlockConfig(
        nodes=tuple([ServerConfig("single", (each,), database, login, tls) for each in _addresses(url)]),
        node_seconds=_duration(given, "node_timeout", 0.05, least=0.001),
        drift=_drift_option(given),
        retry_seconds=_duration(given, "retry_delay", 0.2, least=0.001),
        jitter_seconds=_duration(given, "retry_jitter", 0.2, least=0.0),
        initialises=_init_option(given),
        connections=integer_option(given, "connections", 3, least=1, most=64),
    )


def _addresses(url: URL) -> tuple[Address, ...]:
    if not url.hosts:
        raise InvalidArgument("redlock:// needs its nodes: write redlock://h1:6379,h2:6379,h3:6379")
    addresses = tuple([parse_address(part, 6379, url.scheme) for part in url.hosts.split(",")])
    count = len(addresses)
    for place, address in enumerate(addresses):
        if address in addresses[:place]:
            raise InvalidArgument(
                f"{address} is given twice in the URL: one server is one vote, give it once"
            )
    if count < NODES_MIN:
        raise InvalidArgument(
            f"redlock:// needs at least {NODES_MIN} independent servers, {count} would bear no failure: "
            "one server is redis://"
        )
    if count % 2 == 0:
        raise InvalidArgument(
            f"redlock:// needs an odd number of nodes: {count} bear no more failures than {count - 1}, and "
            "more must answer"
        )
    if count > NODES_MAX:
        raise InvalidArgument(f"redlock:// takes up to {NODES_MAX} nodes: five are enough for most")
    return addresses


def _duration(given: Mapping[str, Any], option: str, default: float, least: float) -> float:
    value = given.get(option, default)
    seconds = seconds_in(value)
    if not least <= seconds <= 60:
        raise InvalidArgument(f"{option} is a duration of at most 60 s: write 50ms, 2s or 0.2")
    return seconds


def _drift_option(given: Mapping[str, Any]) -> float:
    value = given.get("drift", 0.01)
    try:
        drift = float(value)
    except (TypeError, ValueError):
        drift = -1.0
    if isinstance(value, bool) or not 0 <= drift < 0.5:
        raise InvalidArgument("drift is a fraction from 0 to below 0.5, for example 0.01")
    return drift


def _init_option(given: Mapping[str, Any]) -> bool:
    value = given.get("init", "auto")
    if value not in ("auto", "manual"):
        raise InvalidArgument("init is 'auto' or 'manual'")
    return bool(value == "auto")
