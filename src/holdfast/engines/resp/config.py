"""How to reach one server: its address, login, database and TLS, and the URL options that say so.

Options are checked before any I/O. No repr shows a secret.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from ...core.effects import NotApplied
from ...core.printable import printable
from ...core.urls import URL
from ...errors import InvalidArgument

__all__ = [
    "DEFAULT_PORT",
    "TLS_OPTIONS",
    "Address",
    "Credentials",
    "Deployment",
    "Login",
    "ServerConfig",
    "integer_option",
    "merge_options",
    "parse_address",
    "parse_credentials",
    "parse_database",
    "parse_tls",
    "provided_credentials",
    "provider_error",
    "seconds_option",
    "text_option",
    "tls_context",
]

Credentials = tuple[str | None, str | None]
"""User and password. Each is None if it is not given."""

Deployment = Literal["single", "sentinel", "cluster"]

DEFAULT_PORT: Final = 6379

TLS_OPTIONS: Final = (
    "ssl_ca_certs",
    "ssl_ca_path",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
)


class Address(NamedTuple):
    """Where a server listens. Port 0: ``host`` is the path of a Unix socket."""

    host: str
    port: int

    def __str__(self) -> str:
        host = printable(self.host)  # the host can come from a Sentinel or from a member of a Cluster
        host = f"[{host}]" if ":" in host and self.port else host
        return f"{host}:{self.port}" if self.port else host


@dataclass(frozen=True, slots=True, repr=False)
class Login:
    """How to log in. Read for every new connection, because a provider can return another password each
    time."""

    username: str | None = None
    password: str | None = None
    provider: Any = None
    """The ``redis.CredentialProvider`` of a live client."""

    def __repr__(self) -> str:
        return "<Login ***>" if self.password or self.provider else "<Login>"

    def credentials(self) -> Credentials:
        if self.provider is None:
            return self.username, self.password
        try:
            return provided_credentials(self.provider.get_credentials())
        except Exception as error:
            raise provider_error(error) from error


def provided_credentials(answer: tuple[str, ...]) -> Credentials:
    """Credentials from the answer of a provider: a password, or a user and a password."""
    return (None, answer[0]) if len(answer) == 1 else (answer[0], answer[1])


def provider_error(error: Exception) -> NotApplied:
    """The error of a credential provider. Its message is left out: it can hold a secret."""
    return NotApplied(f"the credential provider failed ({type(error).__name__})")


@dataclass(frozen=True, slots=True, repr=False)
class ServerConfig:
    """Everything that a connection needs. The repr shows no secret."""

    deployment: Deployment
    addresses: tuple[Address, ...]
    """The server, or the Sentinels or members of a Cluster that are asked first."""
    database: int = 0
    login: Login = field(default_factory=Login)
    tls: ssl.SSLContext | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.deployment} {', '.join(map(str, self.addresses))}>"


# --- URLs ---------------------------------------------------------------------------------------


def merge_options(url: URL, options: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    url.only(known)
    for option in options:
        if option not in known:
            advice = (
                "write rediss://" if option in TLS_OPTIONS else f"its options are {', '.join(sorted(known))}"
            )
            raise InvalidArgument(f"{url.scheme}:// has no option {option!r}: {advice}")
        if option in url.options:
            raise InvalidArgument(f"{option} is given both in the URL and beside it: give it once")
    return {**url.options, **{option: value for option, value in options.items() if value is not None}}


def parse_credentials(url: URL, given: Mapping[str, Any]) -> tuple[str | None, str | None]:
    for option, inside in (("username", url.username), ("password", url.password)):
        if inside and option in given:
            raise InvalidArgument(f"{option} is given both in the URL and beside it: give it once")
    username = text_option(given, "username") or url.username or None
    password = text_option(given, "password") or url.password or None
    if username and not password:
        raise InvalidArgument("a user needs a password: write redis://user:password@host, or :password@host")
    return username, password


def parse_address(text: str, port: int, scheme: str) -> Address:
    """``host``, ``host:port``, ``[::1]:port``."""
    host, colon, written = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, written = text, ""
    host = host.removeprefix("[").removesuffix("]")
    if not host or (":" in host and not text.startswith("[")):
        raise InvalidArgument(f"{scheme}:// has a host that cannot be parsed: write host:port or [::1]:port")
    if written:
        if not (written.isascii() and written.isdecimal()) or not 0 < int(written) < 65536:
            raise InvalidArgument(f"{scheme}:// has a port that is not a number from 1 to 65535")
        port = int(written)
    return Address(host, port)


def parse_database(url: URL, deployment: Deployment) -> int:
    text = url.path.removeprefix("/")
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal()):
        raise InvalidArgument(f"the path of {url.scheme}:// is the number of a database, for example /0")
    if deployment == "cluster" and int(text):
        raise InvalidArgument("a Redis Cluster has only database 0: leave the path out")
    return int(text)


# --- single options -----------------------------------------------------------------------------


def text_option(given: Mapping[str, Any], option: str) -> str | None:
    value = given.get(option)
    if value is not None and not isinstance(value, str):
        raise InvalidArgument(f"{option} is text")
    return value or None


def flag_option(given: Mapping[str, Any], option: str, default: bool) -> bool:
    value = given.get(option, default)
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in ("true", "1", "yes", "on"):
        return True
    if text in ("false", "0", "no", "off"):
        return False
    raise InvalidArgument(f"{option} is true or false")


def integer_option(given: Mapping[str, Any], option: str, default: int, *, least: int, most: int) -> int:
    value = given.get(option, default)
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidArgument(f"{option} is a whole number from {least} to {most}")
    return value


def seconds_option(given: Mapping[str, Any], option: str, default: float) -> float:
    value = given.get(option, default)
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if isinstance(value, bool) or not 0 < seconds < 3600:
        raise InvalidArgument(f"{option} is a number of seconds, above 0 and below 3600")
    return seconds


def parse_tls(given: Mapping[str, Any], how: str, always: bool = False) -> ssl.SSLContext | None:
    """The TLS context that the options describe; None: no TLS. ``how``: what the user writes to get TLS."""
    if always or flag_option(given, "ssl", False):
        return _tls_context_of(given)
    stray = next((name for name in TLS_OPTIONS if name in given), None)
    if stray is not None:
        raise InvalidArgument(f"{stray} needs TLS: write {how}")
    return None


def _tls_context_of(given: Mapping[str, Any]) -> ssl.SSLContext:
    reqs = (text_option(given, "ssl_cert_reqs") or "required").lower()
    if reqs not in ("required", "none"):
        raise InvalidArgument("ssl_cert_reqs is 'required' or 'none'")
    return tls_context(
        ca_certs=text_option(given, "ssl_ca_certs"),
        ca_path=text_option(given, "ssl_ca_path"),
        certfile=text_option(given, "ssl_certfile"),
        keyfile=text_option(given, "ssl_keyfile"),
        verify=reqs == "required",
        check_hostname=flag_option(given, "ssl_check_hostname", True),
    )


def tls_context(
    *,
    ca_certs: str | None = None,
    ca_path: str | None = None,
    ca_data: str | bytes | None = None,
    certfile: str | None = None,
    keyfile: str | None = None,
    key_password: str | Callable[[], str] | None = None,
    verify: bool = True,
    check_hostname: bool = True,
    ciphers: str | None = None,
    least_version: ssl.TLSVersion | None = None,
) -> ssl.SSLContext:
    """A context with its certificates read, so that a missing file is reported before anything is sent."""
    try:
        context = ssl.create_default_context(cafile=ca_certs, capath=ca_path, cadata=ca_data)
        context.check_hostname = verify and check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if verify else ssl.CERT_NONE
        if certfile:
            context.load_cert_chain(certfile, keyfile, key_password)
        if ciphers:
            context.set_ciphers(ciphers)
        if least_version is not None:
            context.minimum_version = least_version
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"the certificates cannot be used: {error}") from None
    return context
