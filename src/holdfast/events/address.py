"""Where a store is: the URL, parsed and checked. No I/O."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from ..core.libpq import LIBPQ_OPTIONS
from ..core.urls import URL, parse_url
from ..errors import EngineUnavailable, InvalidArgument, Unsupported

__all__ = ["DEFAULT_SCHEMA", "PostgresqlAddress", "SqliteAddress", "address_of"]

DEFAULT_SCHEMA: Final = "holdfast_events"

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_POSTGRESQL: Final = frozenset({"postgresql", "postgres"})
_OURS: Final = frozenset({"pooler", "schema"})


@dataclass(frozen=True, slots=True)
class SqliteAddress:
    path: str
    makes_folder: bool = False
    """Only that of the default file: a mistyped path is an error."""


@dataclass(frozen=True, slots=True, repr=False)
class PostgresqlAddress:
    """It may contain a password, so its repr shows nothing."""

    conninfo: str
    settings: Mapping[str, str]
    schema: str
    is_pooled: bool
    """A transaction-pooling proxy stands in between: nothing may be kept in a session."""
    shown: str
    """For messages, without secrets."""

    def __repr__(self) -> str:
        return "<PostgresqlAddress>"


def address_of(url: str | None) -> SqliteAddress | PostgresqlAddress:
    if url is None:
        return _default()
    parsed = parse_url(url)
    if parsed.scheme == "sqlite":
        return SqliteAddress(_path_in(parsed))
    if parsed.scheme in _POSTGRESQL:
        return _postgresql(parsed)
    raise Unsupported(
        f"{parsed.scheme}:// stores no event streams: use a database, postgresql://… or sqlite:///…"
    )


def _default() -> SqliteAddress | PostgresqlAddress:
    """The database of ``$HOLDFAST_URL`` if it is a PostgreSQL; else a file beside that of the locks, which is
    kept for the locks alone: its writers are let in by rules of their own."""
    url = os.environ.get("HOLDFAST_URL")
    if not url:
        return SqliteAddress(os.path.join(_home(), ".local", "share", "holdfast", "events.db"), True)
    address = address_of(url)
    if isinstance(address, SqliteAddress):
        return SqliteAddress(os.path.join(os.path.dirname(address.path), "events.db"))
    return address


def _home() -> str:
    """Not from the environment: that of cron and of a shell differ."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        raise EngineUnavailable(
            f"user {uid} has no entry in the passwd database, so the default file of events has no path: "
            "give a URL, for example 'sqlite:////var/lib/app/events.db'"
        ) from None


def _path_in(url: URL) -> str:
    url.only(())
    if url.username is not None or url.password is not None or url.hosts:
        raise InvalidArgument(
            "sqlite:// has no host: write three slashes and a relative path (sqlite:///events.db), or four"
            " and an absolute one (sqlite:////var/lib/app/events.db)"
        )
    path = url.path[1:]
    if path in ("", "/") or path.endswith("/") or "\0" in path:
        raise InvalidArgument("sqlite:/// needs the path of a file: write for example sqlite:///events.db")
    if path == ":memory:":
        raise InvalidArgument(
            "a database in memory belongs to one connection, and a store has several: name a file"
        )
    return os.path.abspath(path)


def _postgresql(url: URL) -> PostgresqlAddress:
    url.only(LIBPQ_OPTIONS | _OURS)
    schema = url.options.get("schema", DEFAULT_SCHEMA)
    # It needs no quotes: it is the one text that becomes part of statements.
    if _SCHEMA.fullmatch(schema) is None or schema.startswith("pg_"):
        raise InvalidArgument(
            "schema must consist of at most 63 lower-case letters, digits and underscores; it is"
            f" {schema!r}: write for example schema={DEFAULT_SCHEMA}"
        )
    pooler = url.options.get("pooler", "no")
    if pooler not in ("auto", "yes", "no"):
        raise InvalidArgument(f"pooler is yes or no; it is {pooler!r}")
    settings = {name: value for name, value in url.options.items() if name in LIBPQ_OPTIONS}
    settings.setdefault("application_name", "holdfast events")
    if any("\0" in value for value in settings.values()):
        raise InvalidArgument("a setting of libpq contains a zero byte: remove it")
    return PostgresqlAddress(_conninfo(url), settings, schema, pooler == "yes", str(url))


def _conninfo(url: URL) -> str:
    """What libpq reads of a URL; the settings are passed beside it."""
    return f"postgresql://{url.userinfo}{url.hosts}{quote(url.path)}"
