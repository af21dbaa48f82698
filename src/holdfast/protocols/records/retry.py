"""What to do when the engine does not answer, or gives an unexpected reply."""

from __future__ import annotations

from typing import cast

from ...core.arguments import Spec
from ...core.deadlines import pause_seconds
from ...core.effects import (
    Apply,
    Now,
    OutcomeUnknown,
    Pause,
    TransientError,
)
from ...errors import EngineUnavailable, HoldfastError, InvalidArgument, LossReason
from ...rules.requests import (
    Exhausted,
    Gone,
    Mismatch,
    Reply,
    Request,
)
from ..client_state import ClientState

__all__ = [
    "loss_reason",
    "pause_or_give_up",
    "queue_full_error",
    "refusal_error",
    "retry_until_deadline",
    "unavailable_error",
    "unexpected_reply_error",
]


async def retry_until_deadline(
    client_state: ClientState,
    name: str,
    request: Request,
    seconds: float | None = None,
    may_repeat: bool = True,
) -> tuple[Reply, bool]:
    """Repeat a request until there is a reply, for at most ``seconds`` (None: io_timeout).

    ``may_repeat`` False: the request must not be applied twice, so it is not repeated once it may have been
    applied. Returns the reply, and whether an earlier try may have been applied; where there is no reply, the
    cause of the error says so.
    """
    worst: TransientError | None = None
    failures = 0
    since: float | None = None
    while True:
        try:
            return await Apply(name, request), isinstance(worst, OutcomeUnknown)
        except TransientError as trouble:
            if not isinstance(worst, OutcomeUnknown):
                worst = trouble
            if isinstance(worst, OutcomeUnknown) and not may_repeat:
                raise unavailable_error(repr(name), worst) from worst
            if since is None:
                since = await Now()
            ends_at = since + (client_state.io_timeout if seconds is None else seconds)
            failures = await pause_or_give_up(repr(name), worst, ends_at, failures)


async def pause_or_give_up(name: str, trouble: TransientError, ends_at: float, failures: int) -> int:
    left = ends_at - await Now()
    if left <= 0:
        raise unavailable_error(name, trouble) from trouble
    await Pause(min(pause_seconds(failures), left))
    return failures + 1


def unavailable_error(name: str, trouble: TransientError) -> EngineUnavailable:
    return EngineUnavailable(f"the engine cannot be reached for {name}: {trouble}")


def loss_reason(reply: Gone) -> LossReason:
    return cast(LossReason, reply.reason) if reply.reason in ("stolen", "broken") else "expired"


def queue_full_error(name: str, waiting: int, limit: int) -> EngineUnavailable:
    """The queue is full. The attempt that raises this withdraws what it left there."""
    return EngineUnavailable(
        f"{name!r} has {waiting} waiters already, and {limit} may wait for one name: try again later, or "
        "raise the limit with the option max_waiters of connect() or of the URL"
    )


def refusal_error(spec: Spec, reply: Reply) -> HoldfastError:
    """Why the requested lock can never be granted."""
    if isinstance(reply, Mismatch):
        if reply.kind == spec.kind:
            return InvalidArgument(
                f"the semaphore {spec.name!r} was declared with limit {reply.limit}, here with {spec.limit}: "
                "declare the same limit, and change it with resize()"
            )
        return InvalidArgument(
            f"{spec.name!r} is a {reply.kind}, here it is used as a {spec.kind}: "
            "a name has one kind, use another name"
        )
    return unexpected_reply_error(spec.name, reply)


def unexpected_reply_error(name: str, reply: Reply) -> HoldfastError:
    if isinstance(reply, Exhausted):
        return EngineUnavailable(
            f"no more tokens can be minted for {name!r}: the engine's clock is far ahead; set it right"
        )
    if isinstance(reply, Gone):
        return EngineUnavailable(f"the attempt at {name!r} was ended from outside: it is {reply.reason}")
    return EngineUnavailable(
        f"the engine answered {type(reply).__name__} for {name!r}: is it another version?"
    )
