"""The reply to a message that was asked, read from its job. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from ..errors import HoldfastError, LockTimeout
from ..queue.arguments import decoded
from .model import MessageFailed, Rejected

__all__ = ["NO_REPLY", "late", "replies_namespace", "reply_in"]

NO_REPLY: Final = object()


def replies_namespace(namespace: str) -> str:
    """Where replies are announced: apart from new messages, which wake the workers."""
    return "replies-" + hashlib.sha256(namespace.encode()).hexdigest()[:32]


def reply_in(row: Mapping[str, Any] | None, what: str) -> Any:
    """``NO_REPLY``: not yet. Raises what the handler has raised."""
    if row is None:
        raise MessageFailed(
            f"the reply to {what} was removed before it was read: raise the retention of the queue"
        )
    state = row["state"]
    if state == "finished":
        return _result(decoded(row["result"]), what)
    if state == "dead":
        raise _failure(what, "", row["error"] or "its attempts are over")
    if state == "cancelled":
        raise _failure(what, "", "it was cancelled")
    return NO_REPLY


def _result(result: Any, what: str) -> Any:
    if result is None:
        raise _failure(what, "", "it was sent by tell(), which keeps no reply")
    if "rejected" in result:
        raise Rejected(result["rejected"])
    if "error" in result:
        raise _failure(what, result["error"], result["text"])
    return result["reply"]


def _failure(what: str, name: str, text: str) -> HoldfastError:
    error = MessageFailed(f"{what} was not handled, and changed nothing: {f'{name}: ' if name else ''}{text}")
    error.error_type, error.error_text = name, text
    return error


def late(what: str, timeout: float) -> LockTimeout:
    return LockTimeout(
        f"no reply to {what} came within {timeout:g} seconds. It is in the mailbox, and may still be handled:"
        " ask again with the same id= to get that reply"
    )
