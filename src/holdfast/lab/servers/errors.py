"""The errors of the lab's servers.

ServerFailed          the server ended, or did not answer in time; the message has the end of its log
├── PortTaken         another process listens on its port
└── ProgramMissing    the program is not installed; the message names the package
"""

from __future__ import annotations

__all__ = ["PortTaken", "ProgramMissing", "ServerFailed"]


class ServerFailed(RuntimeError):
    """A server failed."""


class PortTaken(ServerFailed):
    """Another process took the port between its choice and the bind."""


class ProgramMissing(ServerFailed):
    """A program that the lab starts is not installed."""

    def __init__(self, program: str, package: str | None) -> None:
        """``package``: the Debian package of the program; None: unknown."""
        how = f": run `make servers`, or on Debian `apt-get install {package}`" if package else ""
        super().__init__(f"{program} is not installed{how}")
