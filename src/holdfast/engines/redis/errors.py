"""Errors of the Redis engine: redirections, servers that are not the master, missing permissions."""

from __future__ import annotations

from typing import Final

from ..resp import errors
from ..resp.config import Address

__all__ = [
    "ACL_RULES",
    "ACL_RULES_CLUSTER",
    "NOT_MASTER",
    "PERMISSION_HINT",
    "error_for",
    "parse_redirection",
]

NOT_MASTER: Final = ("READONLY", "MASTERDOWN", "UNBLOCKED", "ERR WAIT cannot be used with replica")
"""Errors of a server that is not the master, or not any more."""

ACL_RULES: Final = (
    "~holdfast:* &holdfast:* -@all +evalsha +script|load +get +set +time +scan +publish +subscribe +ping"
    " +info|memory"
)
"""The ACL rules of a user with the permissions that Holdfast needs, and no others."""

ACL_RULES_CLUSTER: Final = "+spublish +ssubscribe +sunsubscribe +cluster|slots +asking"
"""The rules that a user of a Cluster needs in addition."""

PERMISSION_HINT: Final = (
    f"the user lacks a permission: Holdfast needs {ACL_RULES} (in a cluster {ACL_RULES_CLUSTER} as well, "
    "with a database other than 0 +select, with wait_replicas +wait)"
)


def error_for(message: str, address: Address) -> errors.Failure:
    return errors.error_for(message, address, PERMISSION_HINT)


def parse_redirection(message: str) -> tuple[bool, int, Address] | None:
    """``MOVED 3999 host:port`` or ``ASK …`` as: is it permanent, the slot, the target (no host: the same
    one)."""
    code, _, rest = message.partition(" ")
    if code not in ("MOVED", "ASK"):
        return None
    slot, _, endpoint = rest.partition(" ")
    host, _, port = endpoint.split(",")[0].strip().rpartition(":")
    if not slot.isdecimal() or not port.isdecimal():
        return None
    return code == "MOVED", int(slot), Address(host.removeprefix("[").removesuffix("]"), int(port))
