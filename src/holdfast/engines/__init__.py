"""Every engine by the scheme of its URL. A new engine is a folder here and one line below."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

from ..core.urls import URL, parse_url
from ..engine_api import Engine
from ..errors import EngineUnavailable, InvalidArgument

__all__ = [
    "ALIASES",
    "CLIENTS",
    "CLIENT_OPTIONS",
    "SCHEMES",
    "default_url",
    "engine_of_client",
    "load",
    "open_engine",
]

SCHEMES: Final[Mapping[str, str]] = {
    "memory": "memory",
    "sqlite": "sqlite",
    "redis": "redis",
    "rediss": "redis",
    "redis+sentinel": "redis",
    "redis+cluster": "redis",
    "redlock": "redlock",
    "etcd": "etcd",
    "zookeeper": "zookeeper",
    "postgresql": "postgres",
    "postgresql+advisory": "postgres",
}
"""Scheme → folder. Each folder has ``open_engine(url, namespace, options)``."""

CLIENT_OPTIONS: Final = ("max_waiters",)
"""Options that the URL of any engine may have. The client itself reads them."""

ALIASES: Final[Mapping[str, str]] = {
    "postgres": "postgresql",
    "postgres+advisory": "postgresql+advisory",
}
"""Other names of schemes, as libpq and hosting services write them."""

CLIENTS: Final[Mapping[str, str]] = {
    "kazoo": "zookeeper",
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
    "redis": "redis",
}
"""Package whose client objects may be passed instead of a URL → folder. Each of these folders has
``open_client(client, namespace, options)``."""


def default_url() -> str:
    """The embedded engine: one file for each user of this machine."""
    from .sqlite import default_url  # engines are imported when they are needed

    return default_url()


def open_engine(text: str, namespace: str, options: Mapping[str, Any]) -> Engine:
    """The engine that a URL names. No I/O: the engine connects when it is first used."""
    url: URL = parse_url(text).without(CLIENT_OPTIONS)
    url = replace(url, scheme=ALIASES.get(url.scheme, url.scheme))
    folder = SCHEMES.get(url.scheme)
    if folder is None:
        raise InvalidArgument(_unknown(url.scheme))
    engine: Engine = load(folder).open_engine(url, namespace, options)
    return engine


def _unknown(scheme: str) -> str:
    import difflib  # only here: most programs never need it, and importing it takes time

    near = difflib.get_close_matches(scheme, [*SCHEMES, *ALIASES], n=1)
    guess = f"did you mean {near[0]}://? If not, " if near else ""
    known = ", ".join(f"{each}://" for each in sorted(SCHEMES))
    return f"no engine is called {scheme!r}: {guess}use one of {known}"


def engine_of_client(client: object, namespace: str, options: Mapping[str, Any]) -> Engine | None:
    """The engine that a client object of another library is connected to; None: it is no such client."""
    for each in type(client).__mro__:
        folder = CLIENTS.get(each.__module__.partition(".")[0])
        if folder is not None:
            engine: Engine = load(folder).open_client(client, namespace, options)
            return engine
    return None


def load(module: str) -> Any:
    """An engine, or a module of one: ``redlock.administration``."""
    try:
        return import_module(f".{module}", __package__)
    except ModuleNotFoundError as missing:
        if (missing.name or "holdfast").partition(".")[0] == "holdfast":
            raise
        extra = module.partition(".")[0]
        raise EngineUnavailable(
            f"this engine needs the package {missing.name!r}: pip install 'holdfast[{extra}]'"
        ) from None
