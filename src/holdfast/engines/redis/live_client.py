"""Settings of somebody's live client of redis-py: where it is connected to, and how it logs in.

The client itself is not used, nor is anything that it does by itself: its retries, its pool, what it makes of
replies. It may be one for threads or for asyncio, whichever of the two Holdfast is used with.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

from ...errors import InvalidArgument
from ..resp.config import DEFAULT_PORT, Address, Login, tls_context
from .config import ENGINE_OPTIONS, RedisConfig, parse_engine_options

__all__ = ["config_from_client"]

TLS_SETTINGS_CARRIED_OVER: Final = frozenset(
    {
        "ssl_ca_certs",
        "ssl_ca_data",
        "ssl_ca_path",
        "ssl_cert_reqs",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_ciphers",
        "ssl_keyfile",
        "ssl_min_version",
        "ssl_password",
    }
)
"""What of a client's TLS our own connections have as well."""

SUPPORTED_CLIENTS: Final = (
    "redis.Redis, redis.asyncio.Redis, their RedisCluster, or what Sentinel.master_for returns"
)


def config_from_client(client: Any, options: Mapping[str, Any]) -> RedisConfig:
    for option in options:
        if option not in ENGINE_OPTIONS:
            raise InvalidArgument(
                f"beside a live client there is no option {option!r}: it knows {', '.join(sorted(ENGINE_OPTIONS))}"
            )
    given = parse_engine_options(options)
    nodes = getattr(client, "nodes_manager", None)
    if nodes is not None:
        return _cluster(client, nodes, given)
    pool = getattr(client, "connection_pool", None)
    if pool is None:
        raise InvalidArgument(
            f"this is no client that can be used ({type(client).__name__}): give {SUPPORTED_CLIENTS}"
        )
    told = dict(pool.connection_kwargs)
    manager = getattr(pool, "sentinel_manager", None)
    if manager is not None:
        return _sentinel(pool, manager, told, given)
    return RedisConfig("single", (_address(told),), **_common(told, pool.connection_class), **given)


def _cluster(client: Any, nodes: Any, given: dict[str, Any]) -> RedisConfig:
    startup = nodes.startup_nodes
    members = list(startup.values()) if isinstance(startup, Mapping) else list(startup)
    addresses = tuple(Address(str(member.host), int(member.port)) for member in members)
    told = dict(nodes.connection_kwargs)
    common = _common(told, told.get("connection_class"))
    return RedisConfig("cluster", addresses, **{**common, "database": 0}, **given)


def _sentinel(pool: Any, manager: Any, told: Mapping[str, Any], given: dict[str, Any]) -> RedisConfig:
    if not pool.is_master:
        raise InvalidArgument("this client reads from replicas: give what Sentinel.master_for returns")
    asked = [each.connection_pool for each in manager.sentinels]
    its = dict(asked[0].connection_kwargs)
    return RedisConfig(
        "sentinel",
        tuple(_address(each.connection_kwargs) for each in asked),
        service=str(pool.service_name),
        sentinel_login=_login(its),
        sentinel_tls=_tls(its, asked[0].connection_class),
        **_common(told, pool.connection_class),
        **given,
    )


def _common(told: Mapping[str, Any], connection_class: Any) -> dict[str, Any]:
    return {
        "database": int(told.get("db") or 0),
        "login": _login(told),
        "tls": _tls(told, connection_class),
    }


def _address(told: Mapping[str, Any]) -> Address:
    if told.get("path"):
        return Address(str(told["path"]), 0)
    return Address(str(told.get("host") or "localhost"), int(told.get("port") or DEFAULT_PORT))


def _login(told: Mapping[str, Any]) -> Login:
    return Login(
        told.get("username") or None, told.get("password") or None, told.get("credential_provider") or None
    )


def _tls(told: Mapping[str, Any], connection_class: Any) -> ssl.SSLContext | None:
    """TLS is a matter of the class of connections, and its settings those that this class was given."""
    names = [each.__name__ for each in getattr(connection_class, "__mro__", ())]
    if not any("SSL" in name for name in names) and not told.get("ssl"):
        return None
    _refuse_unsupported_tls(told, connection_class)
    reqs = told.get("ssl_cert_reqs", "required")
    verify = reqs not in ("none", ssl.CERT_NONE, None)
    return tls_context(
        ca_certs=told.get("ssl_ca_certs"),
        ca_path=told.get("ssl_ca_path"),
        ca_data=told.get("ssl_ca_data"),
        certfile=told.get("ssl_certfile"),
        keyfile=told.get("ssl_keyfile"),
        key_password=told.get("ssl_password"),
        verify=verify,
        check_hostname=bool(told.get("ssl_check_hostname", True)),
        ciphers=told.get("ssl_ciphers"),
        least_version=told.get("ssl_min_version"),
    )


def _refuse_unsupported_tls(told: Mapping[str, Any], connection_class: Any) -> None:
    """How a client protects its connections is carried over as a whole or not at all."""
    lost = sorted(name for name, value in told.items() if name.startswith("ssl_") and value)
    lost = [name for name in lost if name not in TLS_SETTINGS_CARRIED_OVER]
    module = str(getattr(connection_class, "__module__", "redis"))
    if module.partition(".")[0] != "redis":
        lost.append(f"the class {connection_class.__name__}")
    if lost:
        raise InvalidArgument(
            f"the given client protects its connections with {lost[0]}, which Holdfast cannot carry over "
            "to its own: give a URL instead, rediss://host?ssl_ca_certs=…"
        )
