"""The options of a URL, parsed and checked: settings of libpq, and settings of Holdfast."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ...core.libpq import LIBPQ_OPTIONS
from ...core.urls import URL
from ...errors import InvalidArgument

__all__ = [
    "DEFAULT_SCHEMA",
    "LIBPQ_OPTIONS",
    "OUR_OPTIONS",
    "Conninfo",
    "PostgresConfig",
    "check_options",
    "check_schema",
    "config_from_url",
    "make_config",
]

DEFAULT_SCHEMA: Final = "holdfast"

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")

OUR_OPTIONS: Final = frozenset({"pooler", "schema"})
OPTIONS: Final = LIBPQ_OPTIONS | OUR_OPTIONS

Pooler = Literal["auto", "yes", "no"]

KEEPALIVE: Final = {"keepalives_idle": "10", "keepalives_interval": "3", "keepalives_count": "3"}
"""With these, a connection that only listens notices within twenty seconds that its server is gone."""


class Conninfo(str):
    """A connection string of libpq. It may contain a password, so its repr does not show it."""

    __slots__ = ()

    @property
    def server(self) -> str:
        """The server's address, without secrets."""
        settings = conninfo_to_dict(self)
        host = str(settings.get("host") or settings.get("hostaddr") or "the local server")
        return f"{host}:{settings.get('port') or 5432}"

    def __repr__(self) -> str:
        return "<Conninfo>"


@dataclass(frozen=True, slots=True, repr=False)
class PostgresConfig:
    """One database, and how Holdfast uses it. It may contain a password, so its repr shows nothing."""

    libpq: Mapping[str, str]
    schema: str
    pooler: Pooler
    """Whether a transaction-pooling proxy stands in between; ``auto``: find out."""

    def __repr__(self) -> str:
        return "<PostgresConfig>"

    def conninfos(self, io_timeout: float) -> list[Conninfo]:
        """One connection string for each host: given all of them, libpq would wait for the first for ever."""
        hosts = self.libpq.get("host", "").split(",")
        ports = self.libpq.get("port", "").split(",")
        addresses = self.libpq.get("hostaddr", "").split(",")
        if len(hosts) == 1 and len(addresses) > 1:
            hosts *= len(addresses)
        if len(ports) == 1:
            ports *= len(hosts)
        common = {k: v for k, v in self.libpq.items() if k not in ("host", "port", "hostaddr")}
        common = {**KEEPALIVE, "tcp_user_timeout": str(int(io_timeout * 1000)), **common}
        found = []
        for index, (host, port) in enumerate(zip(hosts, ports, strict=True)):
            address = addresses[index] if index < len(addresses) else ""
            one = {"host": host, "port": port, "hostaddr": address}
            found.append(Conninfo(make_conninfo("", **common, **{k: v for k, v in one.items() if v})))
        return found


def config_from_url(url: URL, options: Mapping[str, Any]) -> PostgresConfig:
    """``postgresql://user:password@host:port,host:port/database?option=value``."""
    url.only(OPTIONS)
    given = {**url.options, **check_options(options)}
    if both := sorted(set(url.options) & set(options)):
        raise InvalidArgument(f"{both[0]} is given in the URL and as an argument: give it once")
    libpq = {k: v for k, v in given.items() if k in LIBPQ_OPTIONS}
    hosts = [host.rpartition(":") if _has_port(host) else (host, "", "") for host in url.hosts.split(",")]
    names = [unquote(name.strip("[]")) for name, _, _ in hosts]
    ports = [port for _, _, port in hosts]
    if url.hosts:
        if "host" in libpq:
            raise InvalidArgument("the host is given twice in the URL: give it once")
        libpq["host"] = ",".join(names)
        if any(ports):
            libpq["port"] = ",".join(ports)
    if url.username:
        libpq["user"] = url.username
    if url.password is not None:
        libpq["password"] = url.password
    if url.path.strip("/"):
        libpq["dbname"] = url.path.strip("/")
    return make_config(libpq, given)


def _has_port(host: str) -> bool:
    return ":" in host.rpartition("]")[2]


def check_options(options: Mapping[str, Any]) -> dict[str, str]:
    for name in options:
        if name not in OPTIONS:
            raise InvalidArgument(
                f"postgresql:// has no option {name!r}; its options are {', '.join(sorted(OPTIONS))}"
            )
    return {name: str(value) for name, value in options.items()}


def make_config(libpq: dict[str, str], given: Mapping[str, str]) -> PostgresConfig:
    pooler = given.get("pooler", "auto")
    if pooler not in ("auto", "yes", "no"):
        raise InvalidArgument(f"pooler must be auto, yes or no; it is {pooler!r}")
    libpq.setdefault("application_name", "holdfast")
    for port in filter(None, libpq.get("port", "").split(",")):
        if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
            raise InvalidArgument(
                "a port must be a number from 1 to 65535: write postgresql://host:5432/database"
            )
    if any("\0" in value for value in libpq.values()):
        raise InvalidArgument("a setting of libpq contains a zero byte: remove it")
    config = PostgresConfig(libpq, check_schema(given.get("schema", DEFAULT_SCHEMA)), cast(Pooler, pooler))
    try:
        config.conninfos(1.0)
    except psycopg.Error as error:
        # libpq's message may repeat the settings, and they may contain a password.
        raise InvalidArgument(
            f"libpq cannot read these settings ({type(error).__name__}): write "
            "postgresql://user:password@host:port/database?sslmode=verify-full&sslrootcert=/path/ca.crt"
        ) from None
    return config


def check_schema(name: str) -> str:
    """Accept only a name that needs no quotes: it is the one text that becomes part of statements."""
    if _SCHEMA.fullmatch(name) is None or name.startswith("pg_"):
        raise InvalidArgument(
            f"schema must consist of at most 63 lower-case letters, digits and underscores; it is {name!r}: "
            f"write for example schema={DEFAULT_SCHEMA}"
        )
    return name
