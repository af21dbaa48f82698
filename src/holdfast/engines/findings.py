"""What an engine finds out about the very server it talks to, and what all engines say in the same words."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ..runtime.clock import wall_seconds

if TYPE_CHECKING:
    import ssl

__all__ = [
    "Finding",
    "Status",
    "clock",
    "connection",
    "fail",
    "is_this_machine",
    "ok",
    "unknown",
    "verified",
    "warn",
]

Status = Literal["ok", "warn", "fail", "unknown"]

CLOCK_SECONDS: Final = 2.0
"""Clocks that a time service keeps differ by less. No grant depends on it; people who read logs do."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    """``connection``, ``clock``, ``rights``, ``persistence``, …; with several servers, and of which."""
    status: Status
    text: str
    """What was found and, where it is not well, what to do."""


def ok(topic: str, text: str) -> Finding:
    return Finding(topic, "ok", text)


def warn(topic: str, text: str) -> Finding:
    return Finding(topic, "warn", text)


def fail(topic: str, text: str) -> Finding:
    return Finding(topic, "fail", text)


def unknown(topic: str, text: str) -> Finding:
    return Finding(topic, "unknown", text)


def is_this_machine(host: str) -> bool:
    """Whether what is sent there leaves the machine: a path is a socket, a loopback address does not."""
    name = host.strip("[]")
    if not name or name.startswith(("/", "@")) or name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def verified(context: ssl.SSLContext) -> bool:
    """The server must show a certificate that is trusted, and that is for this host."""
    import ssl  # wherever there is a context, it is loaded

    return context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname


def connection(topic: str, host: str, encrypted: bool, is_verified: bool, remedy: str) -> Finding:
    """Whether others can read along, or pose as the server."""
    if encrypted and is_verified:
        return ok(topic, "encrypted, and the server's certificate is verified")
    if is_this_machine(host):
        how = "encrypted, not verified" if encrypted else "not encrypted"
        return ok(topic, f"{how}; it does not leave this machine")
    if encrypted:
        return warn(topic, f"encrypted, but anyone can pose as the server: {remedy}")
    return warn(topic, f"not encrypted: whoever is on the way reads passwords and changes answers: {remedy}")


def clock(topic: str, ask: Callable[[], float], precision: float = 0.0) -> Finding:
    """``ask`` the server for its wall clock; by how much it differs from ours."""
    before = wall_seconds()
    told = ask()
    after = wall_seconds()
    margin = (after - before) / 2 + precision
    difference = told + precision - (before + after) / 2
    if abs(difference) <= margin:
        return ok(
            topic, f"the server's clock and this machine's differ by less than {max(margin, 0.001):.3f} s"
        )
    ahead = "ahead of" if difference > 0 else "behind"
    text = f"the server's clock is {abs(difference):.3f} s {ahead} this machine's (± {margin:.3f} s)"
    if abs(difference) - margin > CLOCK_SECONDS:
        return warn(topic, f"{text}: have a time service (chrony, ntpd) keep both")
    return ok(topic, text)
