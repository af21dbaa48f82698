"""Classes of actors, checked when they are registered: which methods are messages, and what each takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..errors import InvalidArgument
from ..queue.arguments import check_seconds
from ..sql.retry import Backoff
from .messages import RESERVED, check_text, kind_of_job
from .model import StateKind

__all__ = ["APPLY", "ATTEMPTS", "BACKOFF_SECONDS", "Definition", "check_fields", "define"]

APPLY: Final = "apply"
ATTEMPTS: Final = 5
BACKOFF_SECONDS: Final = 1.0
BACKOFF_MOST_SECONDS: Final = 60.0
"""A mailbox waits while its first message does."""


@dataclass(frozen=True, slots=True)
class Definition:
    """One kind of actors."""

    kind: str
    actor: type[Any]
    messages: Mapping[str, inspect.Signature]
    has_events: bool
    attempts: int
    backoff: Backoff
    snapshot_every: int | None

    @property
    def job_kind(self) -> str:
        return kind_of_job(self.kind)

    def retry_in(self, attempt: int, chance: float) -> float | None:
        """How long to wait after this attempt has failed; None: it was the last."""
        return None if attempt >= self.attempts else self.backoff.pause_seconds(attempt, chance)


def define(
    kind: str,
    actor: type[Any],
    state: StateKind,
    attempts: int,
    backoff: Any,
    snapshot_every: int | None,
    may_await: bool,
) -> Definition:
    check_text(kind, "kind of actor")
    if not isinstance(actor, type):
        raise InvalidArgument(f"an actor is a class with a method for each message; this is {actor!r}")
    has_events = state == "events"
    _check_making(kind, actor)
    if any(vars(each).get("__slots__") for each in actor.__mro__):
        raise InvalidArgument(
            f"the class {actor.__name__} of {kind!r} has __slots__, and the state of an actor is its"
            " __dict__: leave __slots__ out"
        )
    messages = {
        name: _signature(kind, name, function, may_await)
        for name, function in inspect.getmembers(actor, inspect.isfunction)
        if not name.startswith("_")
        and not (has_events and name == APPLY)
        and not isinstance(inspect.getattr_static(actor, name), staticmethod)
    }
    if not messages:
        raise InvalidArgument(
            f"the class {actor.__name__} of {kind!r} has no messages: each public method is a message, so add"
            " one whose name has no underscore in front"
        )
    if has_events:
        _check_apply(kind, actor)
    return Definition(kind, actor, messages, has_events, attempts, _backoff(backoff), snapshot_every)


def _backoff(backoff: object) -> Backoff:
    if isinstance(backoff, Backoff):
        return backoff
    first = check_seconds(backoff, "backoff", 0.0, 86_400.0)
    return Backoff(first, max(first, BACKOFF_MOST_SECONDS))


def _check_making(kind: str, actor: type[Any]) -> None:
    try:
        inspect.signature(actor).bind()
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"the class {actor.__name__} of {kind!r} is constructed without arguments, in the state before"
            " its first message: give the parameters of __init__ defaults, or leave them out"
        ) from None


def _check_apply(kind: str, actor: type[Any]) -> None:
    apply = getattr(actor, APPLY, None)
    if not inspect.isfunction(apply) or inspect.iscoroutinefunction(apply):
        raise InvalidArgument(
            f"{kind!r} keeps events, so its class {actor.__name__} needs a plain method apply(self, event),"
            " which changes the attributes according to the event"
        )


def _signature(kind: str, name: str, function: Any, may_await: bool) -> inspect.Signature:
    if inspect.iscoroutinefunction(function) and not may_await:
        raise InvalidArgument(
            f"the method {name} of {kind!r} is async, and this system is for threads: use the system"
            " of holdfast.actors.aio"
        )
    signature = inspect.signature(function)
    for parameter in list(signature.parameters.values())[1:]:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise InvalidArgument(
                f"the method {name} of {kind!r} takes {parameter} by position, and fields have names:"
                " make it an ordinary parameter"
            )
        if parameter.name in RESERVED:
            raise InvalidArgument(
                f"the method {name} of {kind!r} has a parameter {parameter.name}, which tell() and ask()"
                f" take themselves: call it for example {parameter.name}_"
            )
    return signature


def check_fields(definition: Definition, message: str, fields: Mapping[str, Any]) -> None:
    """Refuse what the class cannot take."""
    signature = definition.messages.get(message)
    if signature is None:
        known = ", ".join(sorted(definition.messages))
        raise InvalidArgument(f"{definition.kind!r} has no message {message!r}: there is {known}")
    try:
        signature.bind(None, **fields)
    except TypeError as error:
        raise InvalidArgument(
            f"the fields do not fit the message {message!r} of {definition.kind!r}: {error}"
        ) from None
