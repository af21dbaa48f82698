"""The configuration from a live client of redis-py: its addresses, its login and its TLS settings.

Holdfast uses neither the client itself nor its retries, its pool or its decoding of replies. The client may
be one for threads or for asyncio, whichever driver Holdfast is used with.
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
"""The TLS settings of a client that Holdfast's own connections have as well."""

SUPPORTED_CLIENTS: Final = (
    "redis.Redis, redis.asyncio.Redis, their RedisCluster, or what Sentinel.master_for returns"
)


def config_from_client(client: Any, options: Mapping[str, Any]) -> RedisConfig:
    for option in options:
        if option not in ENGINE_OPTIONS:
            known = ", ".join(sorted(ENGINE_OPTIONS))
            raise InvalidArgument(
                f"with a live client there is no option {option!r}: its options are {known}"
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
    kwargs = dict(pool.connection_kwargs)
    manager = getattr(pool, "sentinel_manager", None)
    if manager is not None:
        return _sentinel(pool, manager, kwargs, given)
    return RedisConfig("single", (_address(kwargs),), **_common(kwargs, pool.connection_class), **given)


def _cluster(client: Any, nodes: Any, given: dict[str, Any]) -> RedisConfig:
    startup = nodes.startup_nodes
    members = list(startup.values()) if isinstance(startup, Mapping) else list(startup)
    addresses = tuple(Address(str(member.host), int(member.port)) for member in members)
    kwargs = dict(nodes.connection_kwargs)
    common = _common(kwargs, kwargs.get("connection_class"))
    return RedisConfig("cluster", addresses, **{**common, "database": 0}, **given)


def _sentinel(pool: Any, manager: Any, kwargs: Mapping[str, Any], given: dict[str, Any]) -> RedisConfig:
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
        **_common(kwargs, pool.connection_class),
        **given,
    )


def _common(kwargs: Mapping[str, Any], connection_class: Any) -> dict[str, Any]:
    return {
        "database": int(kwargs.get("db") or 0),
        "login": _login(kwargs),
        "tls": _tls(kwargs, connection_class),
    }


def _address(kwargs: Mapping[str, Any]) -> Address:
    if kwargs.get("path"):
        return Address(str(kwargs["path"]), 0)
    return Address(str(kwargs.get("host") or "localhost"), int(kwargs.get("port") or DEFAULT_PORT))


def _login(kwargs: Mapping[str, Any]) -> Login:
    return Login(
        kwargs.get("username") or None,
        kwargs.get("password") or None,
        kwargs.get("credential_provider") or None,
    )


def _tls(kwargs: Mapping[str, Any], connection_class: Any) -> ssl.SSLContext | None:
    """Whether there is TLS depends on the connection class. Its arguments are the settings."""
    names = [each.__name__ for each in getattr(connection_class, "__mro__", ())]
    if not any("SSL" in name for name in names) and not kwargs.get("ssl"):
        return None
    _refuse_unsupported_tls(kwargs, connection_class)
    reqs = kwargs.get("ssl_cert_reqs", "required")
    verify = reqs not in ("none", ssl.CERT_NONE, None)
    return tls_context(
        ca_certs=kwargs.get("ssl_ca_certs"),
        ca_path=kwargs.get("ssl_ca_path"),
        ca_data=kwargs.get("ssl_ca_data"),
        certfile=kwargs.get("ssl_certfile"),
        keyfile=kwargs.get("ssl_keyfile"),
        key_password=kwargs.get("ssl_password"),
        verify=verify,
        check_hostname=bool(kwargs.get("ssl_check_hostname", True)),
        ciphers=kwargs.get("ssl_ciphers"),
        least_version=kwargs.get("ssl_min_version"),
    )


def _refuse_unsupported_tls(kwargs: Mapping[str, Any], connection_class: Any) -> None:
    """The TLS settings of a client are carried over completely or not at all."""
    unsupported = sorted(name for name, value in kwargs.items() if name.startswith("ssl_") and value)
    unsupported = [name for name in unsupported if name not in TLS_SETTINGS_CARRIED_OVER]
    module = str(getattr(connection_class, "__module__", "redis"))
    if module.partition(".")[0] != "redis":
        unsupported.append(f"the class {connection_class.__name__}")
    if unsupported:
        raise InvalidArgument(
            f"the given client protects its connections with {unsupported[0]}, which Holdfast cannot carry "
            "over to its own: give a URL instead, rediss://host?ssl_ca_certs=…"
        )
