"""Sorts failed calls: not applied, outcome unknown, or engine unavailable."""

from __future__ import annotations

from typing import Final

from ...core.effects import NotApplied, OutcomeUnknown
from ...core.printable import printable
from ...errors import EngineUnavailable

__all__ = [
    "ALL_BUSY",
    "NEVER_SENT",
    "UNREADABLE",
    "UNUSABLE",
    "AuthTokenError",
    "CompactedError",
    "LeaseExistsError",
    "LeaseNotFoundError",
    "classify_error",
    "server_message",
]


class LeaseNotFoundError(Exception):
    """The lease does not exist. Nothing happened."""


class LeaseExistsError(Exception):
    """A lease with this id exists already. Nothing happened."""


class CompactedError(Exception):
    """The requested revision has been compacted. Nothing happened."""


class AuthTokenError(Exception):
    """The authentication token is no longer valid. Nothing happened."""


NEVER_SENT: Final = "NEVER_SENT"
"""Beside gRPC's codes: the call was not sent."""

ALL_BUSY: Final = "ALL_BUSY"
"""The call was not sent because all connections or streams of this client are in use."""

UNREADABLE: Final = "UNREADABLE"
"""The response does not tell the outcome: the call may have been applied."""

UNUSABLE: Final = "UNUSABLE"
"""The call was not sent: the endpoint is not etcd, or TLS with it fails. Another member may work."""

TOKENS: Final = ("invalid auth token", "revision of auth store is old")
REFUSALS: Final = ("too many requests", "no leader")


def classify_error(code: str, details: str, prefix: str = "holdfast") -> Exception:
    """``code``: the name of gRPC's status code, or one of our own; ``prefix``: that of our keys."""
    message = server_message(details)
    if code == "UNAUTHENTICATED" or any(text in details for text in TOKENS):
        return AuthTokenError(message)
    if code == "NOT_FOUND" and "lease not found" in details:
        return LeaseNotFoundError(message)
    if code == "FAILED_PRECONDITION" and "lease already exists" in details:
        return LeaseExistsError(message)
    if code == "OUT_OF_RANGE" and "compacted" in details:
        return CompactedError(message)
    if code in (NEVER_SENT, ALL_BUSY):
        return NotApplied(f"etcd cannot be reached: {message}")
    if code in ("UNAVAILABLE", "RESOURCE_EXHAUSTED") and any(text in details for text in REFUSALS):
        return NotApplied(f"etcd refuses: {message}")
    if code == "DEADLINE_EXCEEDED":
        return OutcomeUnknown("etcd did not answer in time")
    if code == UNREADABLE:
        return OutcomeUnknown(f"etcd's answer cannot be read: {message}")
    if code in ("UNAVAILABLE", "CANCELLED", "UNKNOWN", "INTERNAL", "ABORTED"):
        return OutcomeUnknown(f"etcd did not answer: {message}")
    return EngineUnavailable(_unavailable_message(code, message, prefix))


def _unavailable_message(code: str, message: str, prefix: str) -> str:
    if code == UNUSABLE:
        return message
    if code == "RESOURCE_EXHAUSTED" and "space exceeded" in message:
        return f"etcd is full ({message}): compact and defragment it, raise its quota, then disarm the alarm"
    if "user name is empty" in message:
        return "etcd requires authentication: write the user and the password into the URL, etcd://user:password@host"
    if code == "PERMISSION_DENIED":
        return (
            f"etcd does not permit this ({message}): a role of the user needs readwrite on the keys that "
            f"begin with {prefix}/: etcdctl role grant-permission ROLE readwrite {prefix}/ --prefix=true"
        )
    return f"etcd refuses: {message} ({code})"


def server_message(details: str) -> str:
    """The first line of the server's message, shortened, with control characters escaped. It repeats no
    request, and so no secret."""
    line = details[:2000].strip().partition("\n")[0][:200]
    return printable(line) or "no reason given"
