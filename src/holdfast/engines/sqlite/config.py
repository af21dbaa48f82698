"""The URL ``sqlite://…``: which database file it names."""

from __future__ import annotations

import os
import pwd
from urllib.parse import quote

from ...core.urls import URL
from ...errors import EngineUnavailable, InvalidArgument

__all__ = ["default_path", "default_url", "is_default", "path_from_url", "url_of"]


def default_path() -> str:
    """The user's own database. The environment does not change it: that of cron and of a shell differ."""
    uid = os.geteuid()
    try:
        home = pwd.getpwuid(uid).pw_dir
    except KeyError:
        raise EngineUnavailable(
            f"user {uid} has no entry in the passwd database, so the default locks database has no path: "
            "give a URL, for example 'sqlite:////var/lib/app/locks.db', or set HOLDFAST_URL"
        ) from None
    return os.path.join(home, ".local", "share", "holdfast", "locks.db")


def default_url() -> str:
    """The database that all processes of this user share by default."""
    return url_of(default_path())


def url_of(path: str) -> str:
    return f"sqlite:///{quote(path)}"


def is_default(path: str) -> bool:
    """Whether this is the default path. Only its folders are created: a mistyped path is an error."""
    try:
        return path == default_path()
    except EngineUnavailable:
        return False


def path_from_url(url: URL) -> str:
    """The file that a URL names, made absolute at once: a later chdir does not change it."""
    if url.username is not None or url.password is not None or url.hosts:
        raise InvalidArgument(
            "sqlite:// has no host: write three slashes and a relative path (sqlite:///locks.db), "
            "or four and an absolute one (sqlite:////var/lib/app/locks.db)"
        )
    if url.path == "":
        return default_path()
    path = url.path[1:]
    if path in ("", "/") or path.endswith("/"):
        raise InvalidArgument("sqlite:/// needs the path of a file: write for example sqlite:///locks.db")
    if "\0" in path:
        raise InvalidArgument("the path of the database contains a NUL character: write a path without one")
    if path == ":memory:":
        raise InvalidArgument(
            "a database in memory (sqlite:///:memory:) cannot be shared: write memory:// instead"
        )
    return os.path.abspath(path)
