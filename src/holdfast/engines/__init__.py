"""Every engine by the scheme of its URL. A new engine is a folder here and one line below."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from ..core.urls import URL, parse_url
from ..drivers.adapter import Engine
from ..errors import InvalidArgument

__all__ = ["SCHEMES", "default_url", "open_engine"]

SCHEMES: Final[Mapping[str, str]] = {
    "memory": "memory",
    "sqlite": "sqlite",
}
"""Scheme → folder. Each folder has ``open_engine(url, namespace, options)``."""


def default_url() -> str:
    """The embedded engine: one file for each user of this machine."""
    from .sqlite import default_url  # engines are loaded when they are asked for

    return default_url()


def open_engine(text: str, namespace: str, options: Mapping[str, Any]) -> Engine:
    """The engine that a URL names. No I/O: connecting comes with the first use."""
    url: URL = parse_url(text)
    folder = SCHEMES.get(url.scheme)
    if folder is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted(SCHEMES))
        raise InvalidArgument(f"no engine is called {url.scheme!r}: use one of {known}")
    module = import_module(f".{folder}", __package__)
    engine: Engine = module.open_engine(url, namespace, options)
    return engine
