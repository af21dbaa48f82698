"""A message as a job of the queue. Checked before any I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..core.arguments import check_name
from ..errors import InvalidArgument
from ..queue.arguments import job_row
from ..queue.model import NewJob

__all__ = [
    "RESERVED",
    "NewMessage",
    "Received",
    "check_id",
    "check_text",
    "kind_of_job",
    "new_message",
    "received",
]

RESERVED: Final = frozenset({"id", "connection", "timeout"})
"""What ``tell`` and ``ask`` take themselves, so no field has these names."""

_PREFIX: Final = "actor:"
_JOB_ATTEMPTS: Final = 1_000_000
"""How many there are is said by the class, which the sender need not have."""


@dataclass(frozen=True, slots=True)
class NewMessage:
    """One message to put. ``id`` None: it is not compared with others."""

    kind: str
    key: str
    id: str | None
    row: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Received:
    """One message, as its worker finds it."""

    kind: str
    key: str
    id: str
    message: str
    fields: Mapping[str, Any]
    is_asked: bool


def kind_of_job(kind: str) -> str:
    return _PREFIX + kind


def check_text(value: str, what: str) -> str:
    if "\0" in check_name(value, what):
        raise InvalidArgument(f"the {what} {value!r} contains a NUL character: write one without")
    return value


def check_id(value: str | None) -> str | None:
    return None if value is None else check_text(value, "id")


def new_message(
    kind: str,
    key: str,
    message: str,
    fields: Mapping[str, Any],
    *,
    id_: str | None = None,
    is_asked: bool = False,
) -> NewMessage:
    check_text(kind, "kind of actor")
    check_text(key, "key")
    check_text(message, "message")
    check_id(id_)
    payload = {"message": message, "fields": dict(fields), "id": id_, "ask": is_asked}
    job = NewJob(kind_of_job(kind), payload, key=key, ordered=True, max_attempts=_JOB_ATTEMPTS)
    return NewMessage(kind, key, id_, job_row(job))


def received(job: int, kind: str, key: str | None, payload: Any) -> Received:
    """Raises InvalidArgument for a job that was not put as a message."""
    try:
        return Received(
            kind.removeprefix(_PREFIX),
            str(key),
            payload["id"] or str(job),
            payload["message"],
            payload["fields"],
            bool(payload["ask"]),
        )
    except (KeyError, TypeError):
        raise InvalidArgument(
            f"job {job} of kind {kind!r} is no message: send messages by tell() and ask()"
        ) from None
