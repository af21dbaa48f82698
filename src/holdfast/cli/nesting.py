"""A run inside a run: what is held around us, as the environment tells it.

``HOLDFAST_HELD`` lists the grants of all runs around a command, outermost first, as JSON. It is a hint: the
engine says whether such a lease is there, and so whether it is the same engine and namespace.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import holdfast
from holdfast.fencing import fence_text, parse_fence

from .exits import Status, complain

__all__ = ["VARIABLE", "Held", "environment_of", "find_around", "replace_by"]

VARIABLE = "HOLDFAST_HELD"


class Held:
    """One grant that a run around us has, or had."""

    def __init__(self, name: str, owner: str, fence: str) -> None:
        self.name = name
        self.owner = owner
        self.fence = fence

    @property
    def token(self) -> int:
        return parse_fence(self.fence).token

    def environment(self, namespace: str) -> dict[str, str]:
        """What the command of that run got."""
        return {
            "HOLDFAST_NAME": self.name,
            "HOLDFAST_TOKEN": str(self.token),
            "HOLDFAST_FENCE": self.fence,
            "HOLDFAST_NAMESPACE": namespace,
        }


def environment_of(
    lease: holdfast.Lease, name: str, namespace: str, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The variables that tell a command of its grant."""
    fence = lease.fence
    held = Held(
        name, lease.owner, fence_text(fence.source, fence.token, fence.nonce, lease.mode, lease.peers)
    )
    around = [[each.name, each.owner, each.fence] for each in _read(environ)]
    return {
        **held.environment(namespace),
        VARIABLE: json.dumps([*around, [held.name, held.owner, held.fence]]),
    }


def find_around(client: holdfast.Client, name: str, environ: Mapping[str, str] = os.environ) -> Held | None:
    """The run around us that holds this name in this engine; None: there is none, or it lost it."""
    around = [held for held in _read(environ) if held.name == name]
    if not around:
        return None
    holders = {(holder.owner, holder.token) for holder in client.inspect(name).holders}
    return next((held for held in reversed(around) if (held.owner, held.token) in holders), None)


def replace_by(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Become the command. The run around us has an eye on it, as on everything below it."""
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)  # Python ignores them; its children should not.
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606 - no shell is what is wanted
    except OSError as error:
        found = shutil.which(command[0], path=environment.get("PATH"))
        if error.errno == errno.ENOEXEC and found is not None:
            os.execve("/bin/sh", ["/bin/sh", found, *command[1:]], environment)  # noqa: S606 - as execvp does
        complain(f"cannot run {command[0]!r}: {error.strerror}")
        return Status.NOT_FOUND if error.errno == errno.ENOENT else Status.NOT_EXECUTABLE


def _read(environ: Mapping[str, str]) -> list[Held]:
    """The grants around us; what is not ours to understand is none."""
    try:
        listed: Any = json.loads(environ.get(VARIABLE) or "[]")
        found = [Held(name, owner, fence) for name, owner, fence in listed]
        for each in found:
            parse_fence(each.fence)
    except (ValueError, TypeError, holdfast.HoldfastError):
        return []
    return found
