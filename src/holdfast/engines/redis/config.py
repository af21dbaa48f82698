"""How to reach the servers: taken from a URL, checked before any I/O, and never shown with its secrets.

URLs::

    redis://[user:password@]host[:port][/db]
    rediss://…                                   the same over TLS
    redis+sentinel://[user:password@]s1:26379,s2:26379[/db]?service=NAME
    redis+cluster://[user:password@]h1:6379,h2:6379

Options go in the query string or as keyword arguments of ``connect``:

``username``, ``password``
    As in the URL, for those who keep secrets elsewhere.
``connections``
    At most this many connections for commands, for threads, to each server (3).
``wait_replicas``, ``wait_timeout``
    After each grant have so many replicas acknowledge it, within so many seconds (1): else it is given back.
``source``
    A name of one's own for this deployment in fencing tokens. Without one the database is given an id, which
    a server that loses all its data loses too: guards then refuse the tokens that follow.
``service``, ``sentinel_username``, ``sentinel_password``
    Sentinel only: the name of the master, and how to log in to the Sentinels themselves.
``ssl``
    ``true``: Sentinel and Cluster over TLS, too.
``ssl_ca_certs``, ``ssl_ca_path``, ``ssl_certfile``, ``ssl_keyfile``
    Files of certificates, as for redis-py.
``ssl_cert_reqs``, ``ssl_check_hostname``
    ``required`` and ``true``; ``none`` or ``false`` do without.
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
    "TLS_OPTIONS",
    "Address",
    "Credentials",
    "Login",
    "RedisConfig",
    "config_from_url",
    "merge_options",
    "parse_address",
    "parse_credentials",
    "parse_database",
    "parse_tls",
    "provided_credentials",
    "provider_error",
]

Credentials = tuple[str | None, str | None]
"""User and password, each if there is one."""

Deployment = Literal["single", "sentinel", "cluster"]

DEPLOYMENTS: Final[Mapping[str, Deployment]] = {
    "redis": "single",
    "rediss": "single",
    "redis+sentinel": "sentinel",
    "redis+cluster": "cluster",
}

DEFAULT_PORT: Final = 6379
DEFAULT_SENTINEL_PORT: Final = 26379
DEFAULT_CONNECTIONS: Final = 3
DEFAULT_WAIT_SECONDS: Final = 1.0
REPLICAS_MAX: Final = 1000

ENGINE_OPTIONS: Final = ("connections", "wait_replicas", "wait_timeout", "source")
COMMON_OPTIONS: Final = ("username", "password", *ENGINE_OPTIONS)
SENTINEL_OPTIONS: Final = ("service", "sentinel_username", "sentinel_password")
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
        host = printable(self.host)  # a Sentinel or a member of a Cluster may have named it
        host = f"[{host}]" if ":" in host and self.port else host
        return f"{host}:{self.port}" if self.port else host


@dataclass(frozen=True, slots=True, repr=False)
class Login:
    """How to log in. Asked for every connection, since a provider may hand out a new password each time."""

    username: str | None = None
    password: str | None = None
    provider: Any = None
    """A ``redis.CredentialProvider`` of a live client."""

    def __repr__(self) -> str:
        return "<Login ***>" if self.password or self.provider else "<Login>"


def provided_credentials(told: tuple[str, ...]) -> Credentials:
    """What a provider answered: a password, or a user and a password."""
    return (None, told[0]) if len(told) == 1 else (told[0], told[1])


def provider_error(error: Exception) -> NotApplied:
    """It is somebody else's code, and what it says may hold a secret."""
    return NotApplied(f"the credential provider failed ({type(error).__name__})")


@dataclass(frozen=True, slots=True, repr=False)
class RedisConfig:
    """Everything that is needed to connect. Its repr shows no secret."""

    deployment: Deployment
    addresses: tuple[Address, ...]
    """The server; or Sentinels or members of a Cluster to ask first."""
    database: int = 0
    login: Login = field(default_factory=Login)
    tls: ssl.SSLContext | None = None
    service: str = ""
    sentinel_login: Login = field(default_factory=Login)
    sentinel_tls: ssl.SSLContext | None = None
    connections: int = DEFAULT_CONNECTIONS
    wait_replicas: int = 0
    wait_seconds: float = DEFAULT_WAIT_SECONDS
    source: str | None = None

    def __repr__(self) -> str:
        return f"<Settings {self.deployment} {', '.join(map(str, self.addresses))}>"


def config_from_url(url: URL, options: Mapping[str, Any]) -> RedisConfig:
    """What a URL and the keyword arguments beside it say."""
    shape = DEPLOYMENTS[url.scheme]
    given = merge_options(url, options, _known_options(url.scheme))
    username, password = parse_credentials(url, given)
    tls = parse_tls(given, "rediss:// (Sentinel and Cluster: add ssl=true)", url.scheme == "rediss")
    service = text_option(given, "service") or ""
    if shape == "sentinel" and not service:
        raise InvalidArgument("redis+sentinel:// needs the name of the master: write …?service=NAME")
    sentinel_login = Login(text_option(given, "sentinel_username"), text_option(given, "sentinel_password"))
    return RedisConfig(
        deployment=shape,
        addresses=_addresses(url, DEFAULT_SENTINEL_PORT if shape == "sentinel" else DEFAULT_PORT),
        database=parse_database(url, shape),
        login=Login(username, password),
        tls=tls,
        service=service,
        sentinel_login=sentinel_login,
        sentinel_tls=tls,
        **parse_engine_options(given),
    )


def parse_engine_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those options that are Holdfast's own, also beside a live client."""
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


def merge_options(url: URL, options: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    url.only(known)
    for option in options:
        if option not in known:
            told = (
                "it is rediss:// that has it"
                if option in TLS_OPTIONS
                else f"it knows {', '.join(sorted(known))}"
            )
            raise InvalidArgument(f"{url.scheme}:// has no option {option!r}: {told}")
        if option in url.options:
            raise InvalidArgument(f"{option} stands in the URL and beside it: write it once")
    return {**url.options, **{option: value for option, value in options.items() if value is not None}}


def parse_credentials(url: URL, given: Mapping[str, Any]) -> tuple[str | None, str | None]:
    for option, inside in (("username", url.username), ("password", url.password)):
        if inside and option in given:
            raise InvalidArgument(f"{option} stands in the URL and beside it: write it once")
    username = text_option(given, "username") or url.username or None
    password = text_option(given, "password") or url.password or None
    if username and not password:
        raise InvalidArgument("a user needs a password: write redis://user:password@host, or :password@host")
    return username, password


def _addresses(url: URL, port: int) -> tuple[Address, ...]:
    addresses = tuple(parse_address(part, port, url.scheme) for part in (url.hosts or "localhost").split(","))
    if len(addresses) > 1 and url.scheme in ("redis", "rediss"):
        raise InvalidArgument(
            f"{url.scheme}:// is one server: several are redis+sentinel://, redis+cluster:// or redlock://"
        )
    return addresses


def parse_address(text: str, port: int, scheme: str) -> Address:
    """``host``, ``host:port``, ``[::1]:port``."""
    host, colon, written = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, written = text, ""
    host = host.removeprefix("[").removesuffix("]")
    if not host or (":" in host and not text.startswith("[")):
        raise InvalidArgument(f"{scheme}:// has a host that cannot be read: write host:port or [::1]:port")
    if written:
        if not (written.isascii() and written.isdecimal()) or not 0 < int(written) < 65536:
            raise InvalidArgument(f"{scheme}:// has a port that is no number between 1 and 65535")
        port = int(written)
    return Address(host, port)


def parse_database(url: URL, shape: Deployment) -> int:
    text = url.path.removeprefix("/")
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal()):
        raise InvalidArgument(f"the path of {url.scheme}:// is the number of a database, for example /0")
    if shape == "cluster" and int(text):
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
    told = str(value).lower()
    if told in ("true", "1", "yes", "on"):
        return True
    if told in ("false", "0", "no", "off"):
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
    """What the options say of TLS; None: connections are not encrypted. ``how``: what asks for it."""
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
    """Certificates are read here, once: a file that is missing is told before anything is sent."""
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
