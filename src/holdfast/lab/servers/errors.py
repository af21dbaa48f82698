"""What can go wrong with a server of the lab.

ServerFailed          it ended, or did not answer in time; the end of its log is in the message
├── PortTaken         somebody else listens on its port
└── ProgramMissing    it is not installed; the message names the package
"""

from __future__ import annotations

__all__ = ["PortTaken", "ProgramMissing", "ServerFailed"]


class ServerFailed(RuntimeError):
    """A server did not do what it was started for."""


class PortTaken(ServerFailed):
    """Between choosing the port and binding it, somebody else was faster."""


class ProgramMissing(ServerFailed):
    """A program that the lab starts is not installed."""

    def __init__(self, program: str, package: str | None) -> None:
        """``package``: what brings it on Debian; None: whoever named the program knows."""
        how = f": run `make servers`, or on Debian `apt-get install {package}`" if package else ""
        super().__init__(f"{program} is not installed{how}")
