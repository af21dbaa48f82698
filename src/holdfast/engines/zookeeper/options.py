"""The URL of a ZooKeeper: its servers, who we are, where our nodes begin, how long a session lasts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ...core.durations import seconds_in
from ...core.urls import URL
from ...errors import EngineUnavailable, InvalidArgument

__all__ = ["Options", "parse_client", "parse_options"]

PORT: Final = 2181
PREFIX: Final = "/holdfast"
PARTS: Final = ("n", "s")
"""Below a namespace: names, and sessions."""
KNOWN: Final = ("session_timeout", "tls", "ca", "cert", "key")
FILES: Final = ("ca", "cert", "key")
TRUE: Final = ("1", "true", "yes", "on")
FALSE: Final = ("0", "false", "no", "off")
SESSION_SECONDS: Final = 30.0
"""As long as a lock lasts that does not say anything else. Servers give 40 s at most, as they come."""
SESSION_SECONDS_MAX: Final = 86_400.0 * 24
"""Milliseconds are sent as a number of 32 bits."""

Credential = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that a connection needs to know."""

    hosts: tuple[str, ...]
    """``host:port`` of each server."""
    prefix: str
    """The node below which everything is kept."""
    session_timeout: float = SESSION_SECONDS
    """As asked for: the servers have bounds of their own."""
    auth: tuple[Credential, ...] = field(default=(), repr=False)
    """Scheme and credential, as a client of ZooKeeper adds them."""
    more: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """How connections are protected, in kazoo's words."""

    def check_files(self) -> None:
        """Raise if one that TLS needs is not there: kazoo would take that for a network that fails."""
        for name in ("ca", "certfile", "keyfile"):
            path = self.more.get(name)
            if path and not os.access(path, os.R_OK):
                raise EngineUnavailable(f"{path!r} cannot be read: it is needed for TLS")


def parse_options(url: URL, given: Mapping[str, Any]) -> Options:
    """From the URL and from what was passed to ``connect``; both at once is refused."""
    url.only(KNOWN)
    options: dict[str, Any] = dict(url.options)
    for name, value in given.items():
        _known(name)
        if name in options:
            raise InvalidArgument(f"the option {name!r} is in the URL and in the call: give it once")
        options[name] = value
    return Options(
        hosts=_hosts(url.hosts),
        prefix=_prefix(url.path or PREFIX),
        session_timeout=_session(options.get("session_timeout", SESSION_SECONDS)),
        auth=_auth(url.username, url.password),
        more=_protection(options),
    )


def parse_client(client: Any, given: Mapping[str, Any]) -> Options:
    """What a live ``KazooClient`` is connected to, and as whom. Its own session is left alone: ours begins
    and ends with what we do."""
    for name in given:
        _known(name)
    hosts = tuple([f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in client.hosts])
    handler = type(client.handler)
    if client.use_ssl and handler.__module__.partition(".")[0] != "kazoo":
        raise InvalidArgument(
            f"the given client makes its connections with the handler {handler.__name__}, whose TLS Holdfast "
            "cannot carry over to its own: give a URL instead, zookeeper://host?tls=true&ca=…"
        )
    protected = ("use_ssl", "certfile", "keyfile", "keyfile_password", "ca", "verify_certs", "check_hostname")
    return Options(
        hosts=hosts,
        prefix=_prefix(client.chroot or PREFIX),
        session_timeout=_session(given.get("session_timeout", client._session_timeout / 1000)),
        auth=tuple(sorted(client.auth_data)),
        more={
            "sasl_options": client._connection.sasl_options,
            **{name: getattr(client, name) for name in protected},
        },
    )


def _known(name: str) -> None:
    if name not in KNOWN:
        raise InvalidArgument(f"zookeeper:// has no option {name!r}: it knows {', '.join(KNOWN)}")


def _hosts(hosts: str) -> tuple[str, ...]:
    if not hosts.strip(","):
        raise InvalidArgument(
            "zookeeper:// needs a host: write zookeeper://localhost:2181, or several with commas"
        )
    return tuple([_host(each.strip()) for each in hosts.split(",")])


def _host(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidArgument(f"{text!r} is no address: write host or host:port (ZooKeeper's port is {PORT})")
    if ":" in host and not host.startswith("["):
        raise InvalidArgument(f"{text!r} is no address: write an IPv6 address in brackets, [::1]:{PORT}")
    return f"{host}:{port}"


def _prefix(path: str) -> str:
    parts = path.strip("/").split("/")
    if parts == [""]:
        return PREFIX
    if parts[0] == "zookeeper":
        raise InvalidArgument("/zookeeper is ZooKeeper's own: begin the path of the URL with another name")
    for part in parts:
        if part in ("", ".", "..") or not part.isprintable():
            raise InvalidArgument(f"{part!r} is no name of a node: write zookeeper://host/one/two")
    return "/" + "/".join(parts)


def _session(value: Any) -> float:
    seconds = seconds_in(value)
    if not 0.001 <= seconds <= SESSION_SECONDS_MAX:
        raise InvalidArgument(f"session_timeout is a duration, for example 10, 30s or 1m30s; it is {value!r}")
    return seconds


def _protection(options: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: options[name] for name in FILES if options.get(name)}
    tls = _switch(options.get("tls"), default=bool(given))
    if not tls:
        if given:
            raise InvalidArgument("tls is off, but certificates are given: leave out one of them")
        return {}
    for name, path in given.items():
        if not isinstance(path, str | os.PathLike):
            raise InvalidArgument(f"{name} is the path of a file; it is {path!r}")
    if ("cert" in given) != ("key" in given):
        raise InvalidArgument("a certificate of our own needs both: cert=… and key=…")
    files = {name: os.fspath(given[name]) if name in given else None for name in FILES}
    return {
        "use_ssl": True,
        "ca": files["ca"],
        "certfile": files["cert"],
        "keyfile": files["key"],
        "verify_certs": True,
        "check_hostname": True,
    }


def _switch(value: Any, default: bool) -> bool:
    if value is None:
        return default
    text = str(value).lower()
    if text not in TRUE + FALSE:
        raise InvalidArgument(f"tls is true or false; it is {value!r}")
    return text in TRUE


def _auth(user: str | None, password: str | None) -> tuple[Credential, ...]:
    if user is None and password is None:
        return ()
    if not user or password is None:
        raise InvalidArgument(
            "ZooKeeper asks for a user and a password: write zookeeper://user:password@host"
        )
    if ":" in user:
        raise InvalidArgument("a user of ZooKeeper has no ':' in its name")
    return (("digest", f"{user}:{password}"),)
