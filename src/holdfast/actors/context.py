"""What a handler knows of the message it handles, and what it may do beside changing its attributes.

It is found by a context variable, so that a class of actors needs no base class and no argument for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final

from ..errors import InvalidArgument
from .messages import NewMessage

__all__ = ["Context", "context", "current", "open_context"]


class Context:
    """The message that is handled now. ``client`` is the client of the system."""

    def __init__(
        self,
        client: Any,
        kind: str,
        key: str,
        message_id: str,
        attempt: int,
        new_message: Callable[[str, str, str, Mapping[str, Any], str | None], NewMessage],
        append: Callable[[Mapping[str, Any]], None] | None,
    ) -> None:
        self.client = client
        self.kind = kind
        self.key = key
        self.id = message_id
        """The same at every attempt: what an outside service takes as an idempotency key."""
        self.attempt = attempt
        """1 at first."""
        self.outbox: list[NewMessage] = []
        self._new_message = new_message
        self._append = append

    def __repr__(self) -> str:
        return f"<message {self.id} to {self.kind} {self.key!r} attempt={self.attempt}>"

    def tell(self, kind: str, key: str, message: str, /, *, id: str | None = None, **fields: Any) -> None:
        """Send a message, if this one is handled to its end: both are committed together, or neither."""
        self.outbox.append(self._new_message(kind, key, message, fields, id))

    def append(self, event: Mapping[str, Any]) -> None:
        """What has happened, of an actor with ``state="events"``: its ``apply`` is called at once, and the
        event is stored if the message is handled to its end."""
        if self._append is None:
            raise InvalidArgument(
                f"the state of {self.kind!r} is a value, and has no events: change its attributes, or"
                f" register it with actor({self.kind!r}, state='events')"
            )
        self._append(event)


current: Final[ContextVar[Context | None]] = ContextVar("holdfast_actors_context", default=None)


def context() -> Context:
    """The message that is handled now, in this thread or task."""
    found = current.get()
    if found is None:
        raise InvalidArgument(
            "no message is handled here: call context() in a method of an actor, in the thread or task in"
            " which the method runs"
        )
    return found


class open_context:  # noqa: N801 - used as a function in a with statement
    """For as long as a handler runs."""

    def __init__(self, opened: Context) -> None:
        self._opened = opened

    def __enter__(self) -> Context:
        self._token = current.set(self._opened)
        return self._opened

    def __exit__(self, *_: object) -> None:
        current.reset(self._token)
