"""What a failed call means: nothing happened, it may have happened, or there is no point in trying again."""

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
    """The lease is not there. Nothing happened."""


class LeaseExistsError(Exception):
    """A lease of this id is there already. Nothing happened."""


class CompactedError(Exception):
    """What was asked for at an earlier revision has been compacted. Nothing happened."""


class AuthTokenError(Exception):
    """The authentication token is no longer valid. Nothing happened."""


NEVER_SENT: Final = "NEVER_SENT"
"""Beside gRPC's codes: the server has not seen the call, and never will."""

ALL_BUSY: Final = "ALL_BUSY"
"""The same, and that is our own doing: the server has no part in it."""

UNREADABLE: Final = "UNREADABLE"
"""The server has seen the call and answered something that says nothing about it: it may have happened."""

UNUSABLE: Final = "UNUSABLE"
"""The same: it is no etcd, or TLS with it cannot be had. Another member may be better."""

TOKENS: Final = ("invalid auth token", "revision of auth store is old")
REFUSALS: Final = ("too many requests", "no leader")


def classify_error(code: str, details: str, prefix: str = "holdfast") -> Exception:
    """``code``: the name of gRPC's status code, or one of our own; ``prefix``: that of our keys."""
    told = server_message(details)
    if code == "UNAUTHENTICATED" or any(text in details for text in TOKENS):
        return AuthTokenError(told)
    if code == "NOT_FOUND" and "lease not found" in details:
        return LeaseNotFoundError(told)
    if code == "FAILED_PRECONDITION" and "lease already exists" in details:
        return LeaseExistsError(told)
    if code == "OUT_OF_RANGE" and "compacted" in details:
        return CompactedError(told)
    if code in (NEVER_SENT, ALL_BUSY):
        return NotApplied(f"etcd cannot be reached: {told}")
    if code in ("UNAVAILABLE", "RESOURCE_EXHAUSTED") and any(text in details for text in REFUSALS):
        return NotApplied(f"etcd refuses: {told}")
    if code == "DEADLINE_EXCEEDED":
        return OutcomeUnknown("etcd did not answer in time")
    if code == UNREADABLE:
        return OutcomeUnknown(f"etcd's answer cannot be read: {told}")
    if code in ("UNAVAILABLE", "CANCELLED", "UNKNOWN", "INTERNAL", "ABORTED"):
        return OutcomeUnknown(f"etcd did not answer: {told}")
    return EngineUnavailable(_hopeless(code, told, prefix))


def _hopeless(code: str, told: str, prefix: str) -> str:
    if code == UNUSABLE:
        return told
    if code == "RESOURCE_EXHAUSTED" and "space exceeded" in told:
        return f"etcd is full ({told}): compact and defragment it, raise its quota, then disarm the alarm"
    if "user name is empty" in told:
        return "etcd asks who we are: write the user and the password into the URL, etcd://user:password@host"
    if code == "PERMISSION_DENIED":
        return (
            f"etcd does not permit this ({told}): a role of the user needs readwrite on the keys that begin "
            f"with {prefix}/: etcdctl role grant-permission ROLE readwrite {prefix}/ --prefix=true"
        )
    return f"etcd refuses: {told} ({code})"


def server_message(details: str) -> str:
    """The first line of what it says, within bounds and with control characters spelled out. It repeats no
    request, and so no secret."""
    line = details[:2000].strip().partition("\n")[0][:200]
    return printable(line) or "no reason given"
