"""The findings of ``holdfast doctor``, and those that all engines share."""

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
"""Clocks that a time service synchronises differ by less. No grant depends on it, but log files do."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    topic: str
    """``connection``, ``clock``, ``rights``, ``persistence``, …; with several servers, also which server."""
    status: Status
    text: str
    """What was found and, if there is a problem, what to do."""


def ok(topic: str, text: str) -> Finding:
    return Finding(topic, "ok", text)


def warn(topic: str, text: str) -> Finding:
    return Finding(topic, "warn", text)


def fail(topic: str, text: str) -> Finding:
    return Finding(topic, "fail", text)


def unknown(topic: str, text: str) -> Finding:
    return Finding(topic, "unknown", text)


def is_this_machine(host: str) -> bool:
    """Whether the host is this machine: the path of a socket, or a loopback address."""
    name = host.strip("[]")
    if not name or name.startswith(("/", "@")) or name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def verified(context: ssl.SSLContext) -> bool:
    """Whether the server must show a trusted certificate for this host."""
    import ssl  # loaded already: there is a context

    return context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname


def connection(topic: str, host: str, encrypted: bool, is_verified: bool, remedy: str) -> Finding:
    """Whether the traffic is encrypted and the server is verified."""
    if encrypted and is_verified:
        return ok(topic, "encrypted, and the server's certificate is verified")
    if is_this_machine(host):
        how = "encrypted, not verified" if encrypted else "not encrypted"
        return ok(topic, f"{how}; the traffic does not leave this machine")
    if encrypted:
        return warn(topic, f"encrypted, but the server is not verified and could be an impostor: {remedy}")
    return warn(topic, f"not encrypted: the network can read passwords and change replies: {remedy}")


def clock(topic: str, ask: Callable[[], float], precision: float = 0.0) -> Finding:
    """By how much the server's wall clock, which ``ask`` reads, differs from this machine's."""
    before = wall_seconds()
    server = ask()
    after = wall_seconds()
    margin = (after - before) / 2 + precision
    difference = server + precision - (before + after) / 2
    if abs(difference) <= margin:
        return ok(
            topic, f"the server's clock and this machine's differ by less than {max(margin, 0.001):.3f} s"
        )
    ahead = "ahead of" if difference > 0 else "behind"
    text = f"the server's clock is {abs(difference):.3f} s {ahead} this machine's (± {margin:.3f} s)"
    if abs(difference) - margin > CLOCK_SECONDS:
        return warn(topic, f"{text}: synchronise both with a time service (chrony, ntpd)")
    return ok(topic, text)
