"""Preparing an engine before first use, where its users lack the rights to do so.

provision.install("postgresql://admin@db/app")       # what first use would do
print(provision.script("postgresql://db/app"))       # the same as a script, for an administrator
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from .core import arguments
from .errors import Unsupported
from .facades.base import engine_for

__all__ = ["install", "script"]

IO_TIMEOUT_SECONDS = 30.0
"""Making tables takes longer than taking locks."""


@runtime_checkable
class _Installable(Protocol):
    """An engine that needs tables or functions in its server."""

    def install(self, io_timeout: float) -> bool: ...

    def script(self) -> str: ...


def install(url: str | None = None, *, io_timeout: float = IO_TIMEOUT_SECONDS, **options: Any) -> bool:
    """Make what the engine needs in its server; False: everything was there. Safe to repeat and to run
    many times at once."""
    return _installable(url, options).install(arguments.check_io_timeout(io_timeout))


def script(url: str | None = None, **options: Any) -> str:
    """What ``install`` does, as a script for the server's own command-line tool. Does no I/O."""
    return _installable(url, options).script()


def _installable(url: str | None, options: dict[str, Any]) -> _Installable:
    engine = engine_for(url, "holdfast", options)
    if not isinstance(engine, _Installable):
        raise Unsupported(
            f"{engine.url.partition(':')[0]}:// needs no preparation: connect and use it "
            "(only postgresql:// has tables, which can be made beforehand)"
        )
    return engine
