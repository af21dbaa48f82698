"""A run inside another run: the locks of the enclosing runs, which the environment lists.

``HOLDFAST_HELD`` lists the grants of all enclosing runs, outermost first, as JSON. It is a hint: the engine
decides whether such a lease exists, and so whether it is the same engine and namespace.
"""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import holdfast
from holdfast.fencing import fence_text, parse_fence

from .exits import Status, complain

__all__ = ["VARIABLE", "Held", "environment_of", "find_around", "replace_by"]

VARIABLE = "HOLDFAST_HELD"


class Held:
    """One grant that an enclosing run has, or had."""

    def __init__(self, name: str, owner: str, fence: str) -> None:
        self.name = name
        self.owner = owner
        self.fence = fence

    @property
    def token(self) -> int:
        return parse_fence(self.fence).token

    def environment(self, namespace: str) -> dict[str, str]:
        """The value of HOLDFAST_TOKEN or HOLDFAST_FENCE in the command of that run."""
        return {
            "HOLDFAST_NAME": self.name,
            "HOLDFAST_TOKEN": str(self.token),
            "HOLDFAST_FENCE": self.fence,
            "HOLDFAST_NAMESPACE": namespace,
        }


def environment_of(
    lease: holdfast.Lease, name: str, namespace: str, environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The environment variables that describe the grant to the command."""
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
    """The enclosing run that holds this name in this engine; None: there is none, or it has lost the lock."""
    around = [held for held in _read(environ) if held.name == name]
    if not around:
        return None
    holders = {(holder.owner, holder.token) for holder in client.inspect(name).holders}
    return next((held for held in reversed(around) if (held.owner, held.token) in holders), None)


def replace_by(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Replace this process by the command. The enclosing run supervises it with all its descendants."""
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_DFL)  # Python ignores these signals; the command should not.
    try:
        os.execvpe(command[0], list(command), environment)  # noqa: S606 - no shell, on purpose
    except OSError as error:
        import shutil  # only here: it costs every run a millisecond and more

        found = shutil.which(command[0], path=environment.get("PATH"))
        if error.errno == errno.ENOEXEC and found is not None:
            os.execve("/bin/sh", ["/bin/sh", found, *command[1:]], environment)  # noqa: S606 - as execvp does
        complain(f"cannot run {command[0]!r}: {error.strerror}")
        return Status.NOT_FOUND if error.errno == errno.ENOENT else Status.NOT_EXECUTABLE


def _read(environ: Mapping[str, str]) -> list[Held]:
    """The grants of the enclosing runs. A text that cannot be parsed counts as none."""
    try:
        listed: Any = json.loads(environ.get(VARIABLE) or "[]")
        found = [Held(name, owner, fence) for name, owner, fence in listed]
        for each in found:
            parse_fence(each.fence)
    except (ValueError, TypeError, RecursionError, holdfast.HoldfastError):
        return []
    return found
