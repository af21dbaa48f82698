"""Which nodes, and how patient to be with them: taken from a URL and checked before any I/O.

    redlock://[user:password@]h1:6379,h2:6379,h3:6379[/db]

An odd number of independent servers, at least three. Options go in the query string or as keyword arguments
of ``connect``; durations are written ``50ms``, ``2s`` or as a number of seconds:

``node_timeout`` (50ms)
    How long one round of questions to the nodes waits at most.
``drift`` (0.01)
    How much faster than ours the clock of a node may run: 0.01 is one percent.
``retry_delay`` (200ms), ``retry_jitter`` (200ms)
    How long one who waits pauses between two tries at first (ever longer, up to five times that), and what
    chance adds to it.
``init`` (auto)
    ``manual``: nodes that are all empty are not made a set by whoever comes first, but by
    ``holdfast redlock init``.
``connections`` (3)
    At most this many connections to each node, for threads; one more keeps what is held, and another one
    tells a node what it missed, while there is such.
``username``, ``password``
    As in the URL, for those who keep secrets elsewhere. All nodes have the same.
``ssl`` (false)
    ``true``: all nodes over TLS. The certificate of each is verified, and that it is for the name or the
    address by which the URL names the node.
``ssl_ca_certs``, ``ssl_ca_path``, ``ssl_certfile``, ``ssl_keyfile``
    With ``ssl``: files of certificates, as for ``rediss://``.
``ssl_cert_reqs``, ``ssl_check_hostname``
    ``required`` and ``true``; ``none`` or ``false`` do without.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...core.durations import seconds_in
from ...core.urls import URL
from ...errors import InvalidArgument
from ..redis.settings import (
    TLS,
    Address,
    Login,
    Settings,
    address_of,
    credentials_in,
    database_in,
    merged,
    tls_in,
)

__all__ = ["RedlockSettings", "settings_from_url"]

LEAST_NODES: Final = 3
MOST_NODES: Final = 31

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
    *TLS,
)


@dataclass(frozen=True, slots=True, repr=False)
class RedlockSettings:
    """Everything that is needed to ask the nodes. Its repr shows no secret."""

    nodes: tuple[Settings, ...]
    """How to reach each of them."""
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


def settings_from_url(url: URL, options: Mapping[str, Any]) -> RedlockSettings:
    given = merged(url, options, OPTIONS)
    username, password = credentials_in(url, given)
    login = Login(username, password)
    database = database_in(url, "single")
    tls = tls_in(given, "redlock://…?ssl=true as well")
    return RedlockSettings(
        nodes=tuple([Settings("single", (each,), database, login, tls) for each in _addresses(url)]),
        node_seconds=_seconds(given, "node_timeout", 0.05, least=0.001),
        drift=_drift(given),
        retry_seconds=_seconds(given, "retry_delay", 0.2, least=0.001),
        jitter_seconds=_seconds(given, "retry_jitter", 0.2, least=0.0),
        initialises=_initialises(given),
        connections=_connections(given),
    )


def _addresses(url: URL) -> tuple[Address, ...]:
    if not url.hosts:
        raise InvalidArgument("redlock:// needs its nodes: write redlock://h1:6379,h2:6379,h3:6379")
    addresses = tuple([address_of(part, 6379, url.scheme) for part in url.hosts.split(",")])
    count = len(addresses)
    for place, address in enumerate(addresses):
        if address in addresses[:place]:
            raise InvalidArgument(f"{address} stands twice in the URL: one server is one vote, name it once")
    if count < LEAST_NODES:
        raise InvalidArgument(
            f"redlock:// needs at least {LEAST_NODES} independent servers, {count} would bear no failure: "
            "one server is redis://"
        )
    if count % 2 == 0:
        raise InvalidArgument(
            f"redlock:// needs an odd number of nodes: {count} bear no more failures than {count - 1}, and "
            "more must answer"
        )
    if count > MOST_NODES:
        raise InvalidArgument(f"redlock:// takes up to {MOST_NODES} nodes: five are enough for most")
    return addresses


def _seconds(given: Mapping[str, Any], option: str, default: float, least: float) -> float:
    value = given.get(option, default)
    seconds = seconds_in(value)
    if not least <= seconds <= 60:
        raise InvalidArgument(f"{option} is a duration of at most 60 s: write 50ms, 2s or 0.2")
    return seconds


def _drift(given: Mapping[str, Any]) -> float:
    value = given.get("drift", 0.01)
    try:
        drift = float(value)
    except (TypeError, ValueError):
        drift = -1.0
    if isinstance(value, bool) or not 0 <= drift < 0.5:
        raise InvalidArgument("drift is a fraction from 0 to below 0.5, for example 0.01")
    return drift


def _initialises(given: Mapping[str, Any]) -> bool:
    value = given.get("init", "auto")
    if value not in ("auto", "manual"):
        raise InvalidArgument("init is 'auto' or 'manual'")
    return bool(value == "auto")


def _connections(given: Mapping[str, Any]) -> int:
    value = given.get("connections", 3)
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 64:
        raise InvalidArgument("connections is a whole number from 1 to 64")
    return value
