"""The URL of etcd: the endpoints, the credentials, and TLS."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ...core.urls import URL
from ...errors import EngineUnavailable, InvalidArgument

__all__ = ["Config", "parse_config"]

PORT: Final = 2379
PREFIX: Final = "holdfast"
PARTS: Final = ("c", "n")
"""The folders of a namespace: clients, and names."""
KNOWN: Final = ("ca", "cert", "key", "tls")
TRUE: Final = ("1", "true", "yes", "on")
FALSE: Final = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Config:
    """The options of the URL, parsed."""

    endpoints: tuple[str, ...]
    """``host:port`` of each member."""
    prefix: str
    user: str | None
    password: str | None = field(repr=False)
    tls: bool
    ca: str | None
    """The CA file that verifies the servers' certificates; None: the system's CAs."""
    cert: str | None
    """The client certificate, where the servers require one."""
    key: str | None = field(repr=False)

    def tls_context(self) -> ssl.SSLContext | None:
        """Created with each connection; None: without TLS."""
        if not self.tls:
            return None
        for path in (self.ca, self.cert, self.key):
            _check_readable(path)
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                # Without this, ``ssl`` would prompt for the password of an encrypted key at the terminal.
                context.load_cert_chain(self.cert, self.key, password=lambda: "")
        except (ssl.SSLError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise EngineUnavailable(f"ca, cert or key is not what TLS needs, PEM files ({reason})") from None
        context.set_alpn_protocols(["h2"])
        return context


def _check_readable(path: str | None) -> None:
    try:
        if path is not None:
            Path(path).read_bytes()
    except OSError as error:
        raise EngineUnavailable(
            f"{path!r} cannot be read ({error.strerror}): it is needed for TLS"
        ) from error


def parse_config(url: URL, given: Mapping[str, Any]) -> Config:
    """From the URL and from the keyword arguments of ``connect``; an option given twice is refused."""
    url.only(KNOWN)
    options: dict[str, Any] = dict(url.options)
    for name, value in given.items():
        if name not in KNOWN:
            raise InvalidArgument(f"etcd:// has no option {name!r}: it knows {', '.join(KNOWN)}")
        if name in options:
            raise InvalidArgument(f"the option {name!r} is in the URL and in the call: give it once")
        options[name] = value
    tls = _switch(options.get("tls"), default=any(options.get(name) for name in ("ca", "cert", "key")))
    if not tls and any(options.get(name) for name in ("ca", "cert", "key")):
        raise InvalidArgument("tls is off, but certificates are given: leave out one of them")
    if bool(options.get("cert")) != bool(options.get("key")):
        raise InvalidArgument("a client certificate needs both cert=… and key=…")
    if (url.username is None) != (url.password is None):
        raise InvalidArgument("etcd asks for a user and a password: write etcd://user:password@host")
    return Config(
        endpoints=_endpoints(url.hosts),
        prefix=_prefix(url.path),
        user=url.username,
        password=url.password,
        tls=tls,
        ca=_path(options.get("ca"), "ca"),
        cert=_path(options.get("cert"), "cert"),
        key=_path(options.get("key"), "key"),
    )


def _endpoints(hosts: str) -> tuple[str, ...]:
    if not hosts.strip(","):
        raise InvalidArgument("etcd:// needs a host: write etcd://localhost:2379, or several with commas")
    return tuple(_endpoint(each.strip()) for each in hosts.split(","))


def _endpoint(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidArgument(f"{text!r} is no address: write host or host:port (etcd's port is {PORT})")
    if ":" in host and not host.startswith("["):
        raise InvalidArgument(f"{text!r} is no address: write an IPv6 address in brackets, [::1]:{PORT}")
    return f"{host}:{port}"


def _prefix(path: str) -> str:
    prefix = path.strip("/")
    if not prefix.isprintable():
        raise InvalidArgument(f"{prefix!r} is no prefix: write etcd://host/one or etcd://host/one/two")
    return prefix or PREFIX


def _switch(value: Any, default: bool) -> bool:
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text not in TRUE + FALSE:
        raise InvalidArgument(f"tls is true or false; it is {value!r}")
    return text in TRUE


def _path(value: Any, name: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str | Path) or not str(value):
        raise InvalidArgument(f"{name} is the path of a file; it is {value!r}")
    return str(value)
