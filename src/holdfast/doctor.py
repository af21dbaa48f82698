"""Examines the server that a URL names; ``holdfast doctor`` prints the findings.

for finding in doctor.examine("redis://cache.example.org/0"):
    print(finding.topic, finding.status, finding.text)
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from .core import arguments
from .engines.findings import Finding
from .errors import Unsupported
from .facades.base import IO_TIMEOUT_SECONDS, engine_for

__all__ = ["Finding", "examine"]


@runtime_checkable
class _Diagnosable(Protocol):
    """An engine that can examine its server."""

    def diagnose(self, io_timeout: float) -> list[Finding]:
        """Raises EngineUnavailable where the server cannot be examined."""
        ...


def examine(
    url: str | None = None,
    *,
    namespace: str = "holdfast",
    io_timeout: float = IO_TIMEOUT_SECONDS,
    **options: Any,
) -> list[Finding]:
    """Examine the server: connection, clock, rights, and what its guarantees depend on. Takes no lock."""
    engine = engine_for(url, namespace, options)
    if not isinstance(engine, _Diagnosable):
        raise Unsupported(f"{engine.url.partition(':')[0]}:// has nothing to examine")
    return engine.diagnose(arguments.check_io_timeout(io_timeout))
