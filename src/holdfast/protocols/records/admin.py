"""What a client can ask about a name, or do to it, without holding it."""

from __future__ import annotations

from typing import Final

from ...core.arguments import Spec
from ...core.effects import (
    ListNames,
    Now,
    OutcomeUnknown,
    TransientError,
)
from ...errors import EngineUnavailable
from ...rules.record import NEVER_US
from ...rules.requests import (
    Break,
    Broken,
    Done,
    Inspect,
    Resize,
    Snapshot,
)
from ..client_state import ClientState
from .retry import pause_or_give_up, refusal_error, retry_until_deadline, unexpected_reply_error

__all__ = ["WAITS", "break_lock", "inspect", "list_names", "resize"]

WAITS: Final = "_holdfast/waits:"
"""What waiters publish for each other. It is no lock of a user, and is listed only where it is asked for."""


async def inspect(client_state: ClientState, name: str) -> Snapshot:
    reply, _ = await retry_until_deadline(client_state, name, Inspect())
    if not isinstance(reply, Snapshot):
        raise unexpected_reply_error(name, reply)
    return reply


async def list_names(client_state: ClientState, prefix: str) -> list[tuple[str, Snapshot]]:
    """The names in use. Cells are none: some engines keep them beside the locks, others elsewhere."""
    asked = f"the list of names that begin with {prefix!r}" if prefix else "the list of names"
    ends_at = (await Now()) + client_state.io_timeout
    failures = 0
    while True:
        try:
            found = await ListNames(prefix)
        except TransientError as trouble:
            failures = await pause_or_give_up(asked, trouble, ends_at, failures)
        else:
            shows_waits = prefix.startswith(WAITS)
            return [
                (name, snapshot)
                for name, snapshot in found
                if not _is_cell(snapshot) and (shows_waits or not name.startswith(WAITS))
            ]


def _is_cell(snapshot: Snapshot) -> bool:
    """The value of a cell stays for ever, which that of a lock never does."""
    value = snapshot.record.value
    return value is not None and value.forget_at_us == NEVER_US


async def break_lock(client_state: ClientState, name: str, token: int | None, reason: str) -> int | None:
    try:
        reply, _ = await retry_until_deadline(client_state, name, Break(token, reason), may_repeat=False)
    except EngineUnavailable as error:
        if isinstance(error.__cause__, OutcomeUnknown):
            raise EngineUnavailable(
                f"the engine did not answer: {name!r} may have been broken; inspect it before you break it "
                "again"
            ) from error.__cause__
        raise
    if not isinstance(reply, Broken):
        raise unexpected_reply_error(name, reply)
    return reply.token


async def resize(client_state: ClientState, spec: Spec, limit: int) -> None:
    reply, _ = await retry_until_deadline(client_state, spec.name, Resize(spec.limit, limit))
    if not isinstance(reply, Done):
        raise refusal_error(spec, reply)
