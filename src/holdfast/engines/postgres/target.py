"""Where to connect: a URL, or somebody's live connection or pool, as settings of libpq and of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, cast
from urllib.parse import unquote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ...core.urls import URL
from ...errors import InvalidArgument
from .schema import DEFAULT_SCHEMA, check_schema

__all__ = ["OPTIONS", "Conninfo", "Target", "target_of_client", "target_of_url"]

LIBPQ_OPTIONS: Final = frozenset(
    {
        "application_name",
        "channel_binding",
        "gssencmode",
        "host",
        "hostaddr",
        "krbsrvname",
        "options",
        "passfile",
        "port",
        "require_auth",
        "requirepeer",
        "service",
        "ssl_max_protocol_version",
        "ssl_min_protocol_version",
        "sslcert",
        "sslcertmode",
        "sslcrl",
        "sslcrldir",
        "sslkey",
        "sslmode",
        "sslnegotiation",
        "sslpassword",
        "sslrootcert",
        "sslsni",
        "target_session_attrs",
    }
)
"""What goes to libpq as it is: the rest of its settings would undo ours."""

OUR_OPTIONS: Final = frozenset({"pooler", "schema"})
OPTIONS: Final = LIBPQ_OPTIONS | OUR_OPTIONS

KEPT_OF_A_CLIENT: Final = LIBPQ_OPTIONS | {"dbname", "password", "user"}

PROTECTS: Final = ("gss", "scram", "ssl")
"""How settings begin that say how a connection is protected. Of a live client none of them is left out."""

OF_NO_CONSEQUENCE: Final = frozenset({"sslcompression", "sslkeylogfile"})
"""But for these: no server compresses any more, and a log of keys is the client's own affair."""

Pooler = Literal["auto", "yes", "no"]

KEEPALIVE: Final = {"keepalives_idle": "10", "keepalives_interval": "3", "keepalives_count": "3"}
"""A connection that only listens finds out in twenty seconds that its server is gone."""


class Conninfo(str):
    """What libpq connects by. It may hold a password: a traceback that shows variables does not show it."""

    __slots__ = ()

    @property
    def where(self) -> str:
        """The server, fit for an error message."""
        settings = conninfo_to_dict(self)
        host = str(settings.get("host") or settings.get("hostaddr") or "the local server")
        return f"{host}:{settings.get('port') or 5432}"

    def __repr__(self) -> str:
        return "<Conninfo>"


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """One database, and how we use it. It may hold a password: it has no repr to speak of."""

    libpq: Mapping[str, str]
    schema: str
    pooler: Pooler
    """Whether a proxy lends connections out by the transaction; ``auto``: find out."""

    def __repr__(self) -> str:
        return "<Target>"

    def attempts(self, io_timeout: float) -> list[Conninfo]:
        """What to give libpq, host by host: by itself it would wait for the first for ever."""
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


def target_of_url(url: URL, options: Mapping[str, Any]) -> Target:
    """``postgresql://user:password@host:port,host:port/database?option=value``."""
    url.only(OPTIONS)
    given = {**url.options, **_checked(options)}
    if both := sorted(set(url.options) & set(options)):
        raise InvalidArgument(f"{both[0]} stands in the URL and beside it: give it once")
    libpq = {k: v for k, v in given.items() if k in LIBPQ_OPTIONS}
    hosts = [host.rpartition(":") if _has_port(host) else (host, "", "") for host in url.hosts.split(",")]
    names = [unquote(name.strip("[]")) for name, _, _ in hosts]
    ports = [port for _, _, port in hosts]
    if url.hosts:
        if "host" in libpq:
            raise InvalidArgument("the host stands in the URL twice: give it once")
        libpq["host"] = ",".join(names)
        if any(ports):
            libpq["port"] = ",".join(ports)
    if url.username:
        libpq["user"] = url.username
    if url.password is not None:
        libpq["password"] = url.password
    if url.path.strip("/"):
        libpq["dbname"] = url.path.strip("/")
    return _target(libpq, given)


def _has_port(host: str) -> bool:
    return ":" in host.rpartition("]")[2]


def target_of_client(client: Any, options: Mapping[str, Any]) -> Target:
    """The settings of a psycopg connection or pool; the connection itself is left alone."""
    given = _checked(options)
    for name in given:
        if name not in OUR_OPTIONS:
            raise InvalidArgument(f"{name!r} is what the given client says: give schema or pooler only")
    if hasattr(client, "info"):
        found = {**client.info.get_parameters(), "password": client.info.password or None}
    else:
        conninfo = client.conninfo
        if not isinstance(conninfo, str):
            raise InvalidArgument("the pool's conninfo is not text: give a URL instead")
        found = {**conninfo_to_dict(conninfo), **(getattr(client, "kwargs", None) or {})}
    for name, value in found.items():
        is_protection = name.startswith(PROTECTS) and value not in (None, "", "0", 0)
        if is_protection and name not in KEPT_OF_A_CLIENT | OF_NO_CONSEQUENCE:
            raise InvalidArgument(
                f"the given client protects its connections with {name!r}, which Holdfast cannot carry over "
                "to its own: give a URL instead, with sslmode=verify-full and sslrootcert=…"
            )
    return _target({k: str(v) for k, v in found.items() if k in KEPT_OF_A_CLIENT and v}, given)


def _checked(options: Mapping[str, Any]) -> dict[str, str]:
    for name in options:
        if name not in OPTIONS:
            raise InvalidArgument(
                f"postgresql:// has no option {name!r}: it knows {', '.join(sorted(OPTIONS))}"
            )
    return {name: str(value) for name, value in options.items()}


def _target(libpq: dict[str, str], given: Mapping[str, str]) -> Target:
    pooler = given.get("pooler", "auto")
    if pooler not in ("auto", "yes", "no"):
        raise InvalidArgument(f"pooler is auto, yes or no; it is {pooler!r}")
    libpq.setdefault("application_name", "holdfast")
    for port in filter(None, libpq.get("port", "").split(",")):
        if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
            raise InvalidArgument("a port is a number up to 65535: write postgresql://host:5432/database")
    if any("\0" in value for value in libpq.values()):
        raise InvalidArgument("a setting of libpq has a zero byte in it: leave it out")
    target = Target(libpq, check_schema(given.get("schema", DEFAULT_SCHEMA)), cast(Pooler, pooler))
    try:
        target.attempts(1.0)
    except psycopg.Error as error:
        # The message of libpq may repeat what it was given, and that may hold a password.
        raise InvalidArgument(
            f"libpq cannot read these settings ({type(error).__name__}): write "
            "postgresql://user:password@host:port/database?sslmode=verify-full&sslrootcert=/path/ca.crt"
        ) from None
    return target
