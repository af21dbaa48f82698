"""What an error reply means: whether anything happened, and whether a retry can help.

Redis answers an error before it does anything, with one exception: a script that fails while it runs. The
scripts of Holdfast check before they write. If one fails all the same, its effect is unknown and a retry
would not help.

    NOSCRIPT, MOVED, ASK    not here: the engine loads the script or follows the redirection
    NotApplied              nothing happened, and the cause can pass: loading, failover, full, busy
    EngineUnavailable       nothing happened, and the cause does not pass by itself: password, permission
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

from ...core.effects import NotApplied, mark_never_sent
from ...core.printable import printable
from ...errors import EngineUnavailable, HoldfastError
from .config import Address

__all__ = ["Failure", "error_for", "mark_nothing_sent"]

Failure = NotApplied | HoldfastError

_TRANSIENT: Final = {
    "LOADING": "the server is reading its data from disk",
    "MASTERDOWN": "the server is a replica that has lost its master",
    "READONLY": "the server is a read-only replica: connect to its master (redis+sentinel:// finds it)",
    "UNBLOCKED": "the server is not the master any more",
    "CLUSTERDOWN": "the cluster, or a part of it, is down",
    "TRYAGAIN": "the keys of this name are being moved to another server of the cluster",
    "CROSSSLOT": "the keys are in different slots of the cluster",
    "BUSY": "the server is busy with a script: SCRIPT KILL ends a script that hangs",
    "OOM": "the server is out of memory and refuses writes: raise maxmemory, or delete something",
    "MISCONF": "the server cannot save its data and refuses writes: is its disk full?",
    "NOREPLICAS": "the server reaches too few replicas and refuses writes (min-replicas-to-write)",
    "MOVED": "the slots of the cluster are being moved",
    "ASK": "the slots of the cluster are being moved",
    "NOSCRIPT": "the server loses scripts as soon as they are loaded: does a client flush them?",
}
_PERMANENT: Final = {
    "NOAUTH": "the server wants a password: write redis://:password@host or redis://user:password@host",
    "WRONGPASS": "the server does not know this user with this password",
    "NOPERM": "the user lacks a permission",
    "DENIED": "the server runs in protected mode and accepts local connections only: give it a password",
}

_SCRIPT_ERROR: Final = re.compile(r"HOLDFAST (.*?)(?: script: \w+, on @user_script:\d+\.)?$", re.DOTALL)
"""An error that a script of Holdfast raised. The server adds the script and the line."""


@contextlib.contextmanager
def mark_nothing_sent() -> Iterator[None]:
    """For a block that comes before a request: an error or an interrupt then says that it was not sent."""
    try:
        yield
    except (EngineUnavailable, KeyboardInterrupt) as error:
        mark_never_sent(error)
        raise


def error_for(message: str, address: Address, permission_hint: str) -> Failure:
    """The exception for an error reply. ``permission_hint``: which permissions the engine needs."""
    message = printable(message)
    code, _, rest = message.partition(" ")
    script_error = _SCRIPT_ERROR.match(message)
    if script_error is not None:
        return EngineUnavailable(f"Redis {script_error[1]}")
    if code in _TRANSIENT:
        return NotApplied(f"{_TRANSIENT[code]} ({address}: {message})")
    if code == "NOPERM" or _is_denied_in_script(message):
        return EngineUnavailable(f"{permission_hint} ({address}: {message})")
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
        command = rest.partition(", with args")[0]  # the arguments can hold a password
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
