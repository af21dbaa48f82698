"""One message handled by one actor: from what is stored to what is to be stored. No I/O.

The handler works on an object made for this message alone. Whatever it did is dropped unless its outcome is
committed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import InvalidArgument
from ..events.arguments import check_mapping
from ..queue.arguments import encoded
from .context import Context
from .definitions import APPLY, Definition, check_fields
from .messages import NewMessage, Received
from .model import Rejected

__all__ = ["Invocation", "Outcome", "Stored", "attributes_of", "failed", "restored"]

ERROR_TEXT_MAX: Final = 4_000


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored state of an actor. ``version`` 0: nothing. ``attributes`` are those of the value, or of the
    snapshot that ``events`` follow."""

    version: int = 0
    attributes: Mapping[str, Any] | None = None
    events: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The changes that are committed with the end of a message."""

    result: str | None
    """The reply, or the error, of a message that was asked."""
    expected_version: int = 0
    state: str | None = None
    """The new value; None: unchanged."""
    events: Sequence[str] = ()
    snapshot: str | None = None
    messages: Sequence[NewMessage] = field(default=())


def restored(definition: Definition, stored: Stored) -> Any:
    """The object as it was after the last message."""
    actor = definition.actor()
    if stored.attributes is not None:
        vars(actor).update(stored.attributes)
    for event in stored.events:
        getattr(actor, APPLY)(event)
    return actor


def attributes_of(actor: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(actor).items() if not name.startswith("_")}


class Invocation:
    """One run of a handler: ``call()``, awaited if the handler is async, then ``outcome``."""

    def __init__(self, definition: Definition, received: Received, stored: Stored) -> None:
        self._definition = definition
        self._received = received
        self._stored = stored
        self._actor = restored(definition, stored)
        self._before = self._encoded_state()
        self._events: list[str] = []

    def call(self) -> Any:
        check_fields(self._definition, self._received.message, self._received.fields)
        return getattr(self._actor, self._received.message)(**self._received.fields)

    def append(self, event: Mapping[str, Any]) -> None:
        text = check_mapping(event, "an event")
        getattr(self._actor, APPLY)(json.loads(text))
        self._events.append(text)

    def outcome(self, context: Context, reply: Any) -> Outcome:
        result = encoded({"reply": reply}, "reply") if self._received.is_asked else None
        state = self._encoded_state()
        if not self._definition.has_events:
            return Outcome(
                result,
                self._stored.version,
                state if state != self._before else None,
                messages=tuple(context.outbox),
            )
        if not self._events and state != self._before:
            raise InvalidArgument(
                f"the message {self._received.message!r} changed attributes of {self._definition.kind!r},"
                " which are rebuilt from its events: append an event by context().append(event), and"
                " change them in apply()"
            )
        return Outcome(
            result,
            self._stored.version,
            events=tuple(self._events),
            snapshot=state if self._is_snapshot_due() else None,
            messages=tuple(context.outbox),
        )

    def _is_snapshot_due(self) -> bool:
        every, before = self._definition.snapshot_every, self._stored.version
        return every is not None and (before + len(self._events)) // every > before // every

    def _encoded_state(self) -> str:
        return check_mapping(attributes_of(self._actor), f"the state of {self._definition.kind!r}")


def failed(received: Received, error: BaseException) -> Outcome | None:
    """The outcome of a message that failed for good: no state changes. None: the message is tried again."""
    text = str(error).replace("\0", "").encode("utf-8", "replace").decode()[:ERROR_TEXT_MAX]
    if isinstance(error, Rejected):
        return Outcome(encoded({"rejected": text}, "reply"))
    if not received.is_asked:
        return None
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    return Outcome(encoded({"error": name, "text": text}, "reply"))
