"""The header, the refusals and the stored responses, for both middlewares. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from ..core.canonical import Key
from ..core.lock_options import Duration
from ..core.outcomes import RESULT_BYTES_MAX
from ..errors import Conflict, HoldfastError, InvalidArgument, LockTimeout
from ..fencing.http import MAX_BODY_BYTES, Problem

__all__ = [
    "ATTEMPT",
    "HEADER",
    "MAX_BODY_BYTES",
    "METHODS",
    "ApplicationError",
    "NotStored",
    "Settings",
    "StoredResponse",
    "body_refused",
    "body_too_large",
    "key_in",
    "pack",
    "problem_of",
    "stores",
    "unpack",
]

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = ("Idempotent-Replayed", "true")
ATTEMPT: Final = "holdfast.attempt"
"""Where the application finds its attempt, in the environ (ASGI: the scope)."""

METHODS: Final = frozenset({"POST", "PATCH"})
"""The methods that HTTP itself does not call idempotent."""

TYPES: Final = "urn:holdfast:idempotency:"
KEY_MAX: Final = 255
_KEY: Final = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"|([!#-+\--~]+)', re.ASCII)

_NEVER_STORED: Final = frozenset(
    {
        "connection",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Of one connection, of one moment, or a secret of one client."""

_TRY_AGAIN: Final = frozenset({408, 409, 425, 429})


class NotStored(Exception):
    """The application's response asks the client to try again, so the next request is carried out."""


class ApplicationError(Exception):
    """The application raised ``error``, which is the server's to handle."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def stores(status: int) -> bool:
    """Whether a response is final: no failure of the server, and no request to try again."""
    return status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _TRY_AGAIN


@dataclass(frozen=True, slots=True)
class Settings:
    """What a middleware was made with."""

    scope: Key | Callable[[Any], Key]
    methods: frozenset[str]
    required: bool
    keep: Duration
    timeout: Duration | None
    ttl: Duration
    max_body_bytes: int
    stores: Callable[[int], bool]

    @classmethod
    def of(cls, scope: Key | Callable[[Any], Key], methods: Collection[str], **others: Any) -> Settings:
        if isinstance(methods, str):
            raise InvalidArgument(f"methods is a collection of methods: write ({methods!r},)")
        return cls(scope, frozenset(method.upper() for method in methods), **others)

    @property
    def durations(self) -> dict[str, Any]:
        """Arguments of ``client.idempotent`` that are the same for each request."""
        return {"keep": self.keep, "timeout": self.timeout, "ttl": self.ttl}

    def operation_options(
        self, key: str, request: Any, method: str, path: str, query: bytes, body: bytes
    ) -> dict[str, Any]:
        """The arguments of ``client.idempotent``. The same key on another path is another payload."""
        scope = self.scope(request) if callable(self.scope) else self.scope
        return {
            "key": key,
            "scope": ("http", scope),
            "fingerprint": (method, path, query, body),
            **self.durations,
        }


def key_in(headers: Iterable[tuple[str, str]], required: bool) -> str | Problem | None:
    """The key of a request; None: it has none, and needs none."""
    found = [value.strip() for name, value in headers if name.lower() == HEADER.lower()]
    if not found:
        if not required:
            return None
        return _problem(
            HTTPStatus.BAD_REQUEST,
            "key-required",
            "An idempotency key is required",
            f"send the header {HEADER} with a random text, and the same one when you send this request again",
        )
    matched = _KEY.fullmatch(found[0])
    key = "" if matched is None else matched[2] or re.sub(r"\\(.)", r"\1", matched[1] or "")
    if len(found) > 1 or not key or len(key) > KEY_MAX:
        return _problem(
            HTTPStatus.BAD_REQUEST,
            "malformed-key",
            "An idempotency key that cannot be read",
            f"the header {HEADER} is there once, with 1 to {KEY_MAX} printable characters of ASCII, in "
            "double quotes if there are spaces or commas",
        )
    return key


# --- refusals -----------------------------------------------------------------------------------


def problem_of(error: HoldfastError) -> Problem:
    """The problem that a client gets instead of a response. It names no holder and no lock."""
    if isinstance(error, Conflict):
        return _problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "key-reused",
            "The idempotency key belongs to another request",
            "this key was sent with another method, path or body: send a new key with a new request",
        )
    if isinstance(error, LockTimeout):
        return _problem(
            HTTPStatus.CONFLICT,
            "in-flight",
            "The first request is still under way",
            "a request with this key is being carried out: send it again later, with the same key",
        )
    return _problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "outcome-unknown",
        "It is not known whether the request was carried out",
        "send it again, with the same key",
    )


def body_too_large(most: int) -> Problem:
    return _problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "body-too-large",
        "Body too large for a request with an idempotency key",
        f"such a request is read whole, to be compared when it is sent again, and may have {most} bytes",
    )


def body_refused(problem: Problem, most: int) -> Problem:
    """The error that was found in a body, as a problem of this middleware."""
    if problem.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return body_too_large(most)
    return replace(problem, types=TYPES)


def _problem(status: HTTPStatus, kind: str, title: str, detail: str) -> Problem:
    return Problem(int(status), status.phrase, kind, title, detail, types=TYPES)


# --- responses ----------------------------------------------------------------------------------


class StoredResponse(NamedTuple):
    """A response as it is sent again."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def status_line(self) -> str:
        """For WSGI."""
        known = self.status in HTTPStatus._value2member_map_
        return f"{self.status} {HTTPStatus(self.status).phrase if known else 'Unknown'}"


def pack(response: StoredResponse) -> bytes:
    """The stored part of a response. If the response is too large: only that the request was carried out."""
    kept = [[name, value] for name, value in response.headers if name.lower() not in _NEVER_STORED]
    data = json.dumps([response.status, kept]).encode() + b"\n" + response.body
    if len(data) <= RESULT_BYTES_MAX:
        return data
    gone = _problem(
        HTTPStatus.GONE,
        "response-not-kept",
        "The response is not kept",
        f"the request was carried out, with status {response.status}; its response was too large to be kept",
    )
    return pack(StoredResponse(gone.status, gone.headers(), gone.body))


def unpack(data: bytes) -> StoredResponse:
    head, _, body = data.partition(b"\n")
    status, headers = json.loads(head)
    return StoredResponse(status, [*[(name, value) for name, value in headers], REPLAYED], body)
