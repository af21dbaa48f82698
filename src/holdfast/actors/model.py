"""What actors report of messages, as values; and their own errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import HoldfastError

__all__ = ["DeadLetter", "MessageFailed", "Rejected", "StateKind"]

StateKind = Literal["value", "events"]
"""``value``: the attributes as they are. ``events``: what happened, from which they are rebuilt."""


class Rejected(HoldfastError):
    """The actor understood the message, and refuses it. Raised by a handler: nothing is changed, nothing is
    sent, and the message is over, without another try. Raised by ``ask``: the handler has said so."""


class MessageFailed(HoldfastError):
    """The message was not handled: its handler raised, or its workers died at each attempt.

    ``error_type`` is the name of the error's class, ``error_text`` what it said."""

    error_type: str = ""
    error_text: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message whose attempts have all failed. ``queue.retry(letter.id)`` lets it be handled again."""

    id: int
    kind: str
    key: str
    message: str
    fields: Mapping[str, Any]
    attempts: int
    error: str
