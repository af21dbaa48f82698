"""Errors of the Redlock engine: missing permissions, two addresses of one server, TLS that does not
answer."""

from __future__ import annotations

from typing import Final

from ...errors import EngineUnavailable
from ...runtime.clock import boottime

__all__ = [
    "ACL_RULES",
    "PERMISSION_HINT",
    "TLS_HINT",
    "SameServerRefusal",
    "same_server_error",
    "tls_timeout_message",
]

ACL_RULES: Final = (
    "~holdfast::redlock* -@all +evalsha +script|load +get +set +hmget +hset +time +scan +info|server"
    " +config|get"
)
"""The ACL rules of a user with the permissions that Redlock needs, and no others."""

PERMISSION_HINT: Final = (
    f"the user lacks a permission: Redlock needs {ACL_RULES} (with a database other than 0 +select)"
)

TLS_HINT: Final = "; is it a server with TLS? Then add ssl=true"
"""For a connection without TLS that broke before it could be used."""

RECHECK_SECONDS: Final = 10.0
"""How long a client refuses requests before it checks again whether two addresses are one server."""


def tls_timeout_message(address: object, seconds: float) -> str:
    return f"no TLS with {address} in {seconds:g} s: is it a server without TLS?"


def same_server_error(one: object, other: object) -> EngineUnavailable:
    """For two addresses with the same run id."""
    return EngineUnavailable(
        f"{one} and {other} are one server, which is one vote: Redlock needs servers that fail independently"
    )


class SameServerRefusal:
    """Refuses requests after two addresses were found to be one server. It expires: the set can be
    repaired."""

    __slots__ = ("_until", "reason")

    def __init__(self) -> None:
        self.reason = ""
        self._until = 0.0

    def note(self, reason: str) -> None:
        self._until = boottime() + RECHECK_SECONDS
        self.reason = reason

    def check(self) -> None:
        """Raise the refusal while it has not expired."""
        if self.reason:
            if boottime() < self._until:
                raise EngineUnavailable(self.reason)
            self.reason = ""
