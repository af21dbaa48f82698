"""What an error reply means: did anything happen, and is there any point in trying again?

Redis answers an error before it does anything, with one exception: a script that fails on its way. Ours
check before they write; should one fail all the same, nobody knows how far it came, and asking again would
not help.

    NOSCRIPT, MOVED, ASK    not here: the router loads the script, or goes where it is sent
    Refused                 nothing happened, and it may pass: loading, failing over, full, busy
    EngineUnavailable       nothing happened, and it does not pass by itself: wrong password, no permission
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from ...core.effects import NotApplied
from ...core.printable import printable
from ...errors import EngineUnavailable, HoldfastError
from ..redis.codec import script_error as trouble_of_a_script
from ..redis.config import Address

__all__ = [
    "ACL_RULES",
    "ACL_RULES_CLUSTER",
    "NOT_MASTER",
    "Failure",
    "error_for",
    "mark_nothing_sent",
    "parse_redirection",
    "permission_hint",
]

Failure = NotApplied | HoldfastError

NOT_MASTER: Final = ("READONLY", "MASTERDOWN", "UNBLOCKED", "ERR WAIT cannot be used with replica")
"""Errors of a server that is not, or no longer, the master."""

_TRANSIENT: Final = {
    "LOADING": "the server is reading its data from disk",
    "MASTERDOWN": "the server is a replica that has lost its master",
    "READONLY": "the server is a read-only replica: connect to its master (redis+sentinel:// finds it)",
    "UNBLOCKED": "the server is not the master any more",
    "CLUSTERDOWN": "the cluster is down, or a part of it",
    "TRYAGAIN": "the keys of this name are being moved to another server of the cluster",
    "CROSSSLOT": "the keys are in different slots of the cluster",
    "BUSY": "the server is busy running somebody's script: SCRIPT KILL ends one that hangs",
    "OOM": "the server is out of memory and refuses writes: raise maxmemory, or delete something",
    "MISCONF": "the server cannot save its data and refuses writes: is its disk full?",
    "NOREPLICAS": "the server has too few replicas in reach and refuses writes (min-replicas-to-write)",
    "MOVED": "the slots of the cluster are being moved",
    "ASK": "the slots of the cluster are being moved",
    "NOSCRIPT": "the server forgets scripts as they are loaded: does somebody flush them?",
}
_PERMANENT: Final = {
    "NOAUTH": "the server wants a password: write redis://:password@host or redis://user:password@host",
    "WRONGPASS": "the server does not know this user with this password",
    "NOPERM": "the user may not do this",
    "DENIED": "the server runs in protected mode and accepts local connections only: give it a password",
}


@contextlib.contextmanager
def mark_nothing_sent() -> Iterator[None]:
    """Within this block nothing is sent but what comes before any request: of what fails, nothing is left."""
    try:
        yield
    except EngineUnavailable as error:
        error.nothing_was_sent = True
        raise


def error_for(message: str, address: Address, needed: str = "") -> Failure:
    """What to raise for an error reply. ``needed``: the rights that a user must have, if they are others."""
    message = printable(message)
    code, _, rest = message.partition(" ")
    ours = trouble_of_a_script(message)
    if ours is not None:
        return ours
    if code in _TRANSIENT:
        return NotApplied(f"{_TRANSIENT[code]} ({address}: {message})")
    if code == "NOPERM" or _is_denied_in_script(message):
        return EngineUnavailable(f"{needed or permission_hint()} ({address}: {message})")
    if code in _PERMANENT:
        return EngineUnavailable(f"{_PERMANENT[code]} ({address}: {code})")
    if code == "ERR":
        return _generic_error(message, rest, address)
    return EngineUnavailable(f"the server at {address} answered: {message}")


def _generic_error(message: str, rest: str, address: Address) -> Failure:
    if rest.startswith("max number of clients"):
        return NotApplied(f"the server has as many clients as it may (maxclients, {address})")
    if rest.startswith("WAIT cannot be used with replica"):
        return NotApplied(f"the server is not the master any more ({address}: {message})")
    if rest.startswith("unknown command"):
        command = rest.partition(", with args")[0]  # what follows may be a password
        return EngineUnavailable(f"the server at {address} is too old, or lacks a command: {command}")
    if rest.startswith(("DB index is out of range", "invalid DB index")):
        return EngineUnavailable(f"the server at {address} has no such database: {rest}")
    if rest.startswith("SELECT is not allowed in cluster mode"):
        return EngineUnavailable(f"the server at {address} is part of a cluster: write redis+cluster://")
    if rest.startswith("Client sent AUTH, but no password is set"):
        return EngineUnavailable(f"the server at {address} has no password, and one was given: leave it out")
    return EngineUnavailable(f"the server at {address} answered: {message}")


def _is_denied_in_script(message: str) -> bool:
    return "The user executing the script can't" in message or "No permissions to access a key" in message


ACL_RULES: Final = (
    "~holdfast:* &holdfast:* -@all +evalsha +script|load +get +set +time +scan +publish +subscribe +ping"
    " +info|memory"
)
"""The ACL rules of a user with the rights that Holdfast needs, and no others."""

ACL_RULES_CLUSTER: Final = "+spublish +ssubscribe +sunsubscribe +cluster|slots +asking"
"""What a user of a Cluster needs besides."""


def permission_hint() -> str:
    return (
        f"the user lacks a permission: Holdfast needs {ACL_RULES} (in a cluster {ACL_RULES_CLUSTER} as well, "
        "with a database other than 0 +select, with wait_replicas +wait)"
    )


def parse_redirection(message: str) -> tuple[bool, int, Address] | None:
    """Of ``MOVED 3999 host:port`` or ``ASK …``: for good?, the slot, where to (no host: the same one)."""
    code, _, rest = message.partition(" ")
    if code not in ("MOVED", "ASK"):
        return None
    slot, _, place = rest.partition(" ")
    host, _, port = place.split(",")[0].strip().rpartition(":")
    if not slot.isdecimal() or not port.isdecimal():
        return None
    return code == "MOVED", int(slot), Address(host.removeprefix("[").removesuffix("]"), int(port))
