"""The user's database for ``holdfast fence``: from its URL to a connection, and from its errors to ours."""

from __future__ import annotations

import importlib
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from holdfast import errors

from .redaction import learn

__all__ = ["VARIABLE", "open_database"]

VARIABLE: Final = "HOLDFAST_DATABASE_URL"

EXAMPLES: Final = "sqlite:///shop.db, postgresql://user@host/shop or mariadb://user@host/shop"


@contextmanager
def open_database(url: str | None) -> Iterator[Any]:
    """A connection with a transaction to come; what is not committed within is rolled back."""
    if not url:
        raise errors.InvalidArgument(f"which database? write --url, or set {VARIABLE}: {EXAMPLES}")
    learn([url])
    parts = _split(url)
    openers = {
        "sqlite": _sqlite,
        "postgresql": _postgresql,
        "postgres": _postgresql,
        "mariadb": _mariadb,
        "mysql": _mariadb,
    }
    opener = openers.get(parts.scheme)
    if opener is None:
        raise errors.InvalidArgument(
            f"there is no guard for {parts.scheme or 'a URL without scheme'}: write {EXAMPLES}"
        )
    yield from opener(url, parts)


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise errors.InvalidArgument(
            f"the database's URL cannot be read ({error}): write {EXAMPLES}"
        ) from None
    return parts


def _sqlite(url: str, parts: SplitResult) -> Iterator[Any]:
    path = unquote(parts.path)[1:]
    if parts.netloc or not path or parts.query:
        raise errors.InvalidArgument(
            "write three slashes and a relative path (sqlite:///shop.db), or four and an absolute one, and no"
            " options"
        )
    place = Path(path).absolute()
    if not place.is_file():
        raise errors.InvalidArgument(f"there is no database {str(place)!r}: name the file that has your data")
    with (
        _answering(sqlite3.Error),
        closing(sqlite3.connect(f"file:{quote(str(place))}?mode=rw", uri=True)) as db,
    ):
        yield db


def _postgresql(url: str, parts: SplitResult) -> Iterator[Any]:
    psycopg = _driver("psycopg", "postgres")
    with _answering(psycopg.Error), closing(psycopg.connect(url)) as db:
        yield db


def _mariadb(url: str, parts: SplitResult) -> Iterator[Any]:
    pymysql = _driver("pymysql", "mariadb")
    options = dict(parse_qsl(parts.query))
    if unknown := sorted(options.keys() - {"unix_socket", "ssl_ca"}):
        raise errors.InvalidArgument(
            f"{parts.scheme}:// has no option {unknown[0]!r}: it has unix_socket and ssl_ca"
        )
    database = unquote(parts.path)[1:]
    if not database:
        raise errors.InvalidArgument(f"which database of that server? write {EXAMPLES}")
    with (
        _answering(pymysql.err.Error),
        closing(
            pymysql.connect(
                host=parts.hostname or "localhost",
                port=parts.port or 3306,
                user=unquote(parts.username) if parts.username else None,
                password=unquote(parts.password or ""),
                database=database,
                charset="utf8mb4",
                **options,
            )
        ) as db,
    ):
        yield db


def _driver(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name != name:
            raise
        raise errors.InvalidArgument(
            f"this database needs the package {name!r}: pip install 'holdfast[{extra}]'"
        ) from None


@contextmanager
def _answering(kind: type[Exception]) -> Iterator[None]:
    """What the driver raised, in its own words, with the notes of the guard."""
    try:
        yield
    except kind as error:
        said = " ".join([str(error).strip(), *getattr(error, "__notes__", ())])
        raise errors.EngineUnavailable(f"the database answered: {said}") from error
