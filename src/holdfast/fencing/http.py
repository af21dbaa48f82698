"""The guard over HTTP: the headers that carry a grant, and how a server refuses one. Pure.

A client that writes under a lock sends, with each request that changes something:

    Fencing-Token: 1795031791310829       the token
    Fencing-Resource: invoices            what the lock protects, usually the lock's name; percent-encoded
    Fencing-Source: redis:main            the engine that numbers belong to, and
    Fencing-Nonce: 5e1c…                  which grant it is; both, or neither (weaker: the number alone)
    Fencing-Peers: 17,18                  tokens of the other holders of a semaphore, where there are any

The server keeps the newest grant in the database that the request changes, and answers with a problem
document (RFC 9457): 428 without a token, 400 where the headers cannot be read, 409 with ``newest`` for a
stale one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote

from ..errors import InvalidArgument, StaleToken
from ..model import Fence
from .arguments import Presentable, checked_resource, mark_of, name_of
from .grant import Grant
from .writers import advancing_mark, writing_mark

__all__ = [
    "MAX_BODY_BYTES",
    "PROBLEM_TYPE",
    "SAFE_METHODS",
    "Presented",
    "Problem",
    "body_incomplete",
    "body_too_large",
    "fencing_headers",
    "read_headers",
    "stale_problem",
    "stale_token_in",
]

TOKEN: Final = "Fencing-Token"
RESOURCE: Final = "Fencing-Resource"
SOURCE: Final = "Fencing-Source"
NONCE: Final = "Fencing-Nonce"
PEERS: Final = "Fencing-Peers"
NAMES: Final = (TOKEN, RESOURCE, SOURCE, NONCE, PEERS)

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""They change nothing (RFC 9110), so they need no token."""

MAX_BODY_BYTES: Final = 1 << 20
PROBLEM_TYPE: Final = "application/problem+json"
TYPES: Final = "urn:holdfast:fencing:"

_NUMBER: Final = re.compile(r"[0-9]{1,19}", re.ASCII)
_UNQUOTED: Final = "/:@+=!$&'()*;"
"""As they are in a header. No comma: servers join two headers of one name by it."""


# --- what the client sends ----------------------------------------------------------------------


def fencing_headers(
    lease_or_token: Presentable, resource: str | None = None, *, method: str = "POST"
) -> dict[str, str]:
    """The headers that present a lease, for any HTTP client.

    ``resource`` is the lock's own name where it is not given. ``LockLost`` if the lease is lost already; a
    read lease is refused for methods that write.
    """
    resource = checked_resource(name_of(lease_or_token) if resource is None else resource)
    mark = (advancing_mark if method.upper() in SAFE_METHODS else writing_mark)(lease_or_token)
    headers = {TOKEN: str(mark.token), RESOURCE: _quoted(resource)}
    if mark.source and mark.nonce:
        headers |= {SOURCE: _quoted(mark.source), NONCE: _quoted(mark.nonce)}
    if mark.peers:
        headers[PEERS] = ",".join(map(str, mark.peers))
    return headers


def stale_token_in(status: int, content_type: str, body: bytes) -> StaleToken | None:
    """The refusal that a response carries, as the error that a guard here would have raised."""
    if status != 409 or content_type.partition(";")[0].strip().lower() != PROBLEM_TYPE:
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("type") != f"{TYPES}stale-token":
        return None
    error = StaleToken(str(found.get("detail", "the server refused a stale token")))
    error.resource = str(found.get("resource", ""))
    token, newest = found.get("token"), found.get("newest")
    error.token = token if isinstance(token, int) else None
    error.newest = newest if isinstance(newest, int) else None
    return error


# --- what the server makes of it ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Presented:
    """What a request presents, as guards accept it."""

    resource: str
    grant: Grant | int
    """An int where the client sent a bare token."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A response that refuses a request (RFC 9457)."""

    status: int
    reason: str
    """The phrase of the status line."""
    kind: str
    title: str
    detail: str
    members: Mapping[str, Any] = field(default_factory=dict)
    types: str = TYPES
    """What the kinds of problems are named by."""

    @property
    def body(self) -> bytes:
        document = {
            "type": self.types + self.kind,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            **self.members,
        }
        return json.dumps(document).encode()

    def headers(self) -> list[tuple[str, str]]:
        return [
            ("Content-Type", PROBLEM_TYPE),
            ("Content-Length", str(len(self.body))),
            ("Cache-Control", "no-store"),
        ]


def read_headers(headers: Iterable[tuple[str, str]], resource: str | None = None) -> Presented | Problem:
    """What the request presents, or the response to a request without a fence, or with an invalid one.

    ``resource`` is what the server itself says the request is about; the client may then name no other.
    """
    found: dict[str, str] = {}
    for name, value in headers:
        known = _KNOWN.get(name.lower())
        if known in found:
            return _malformed(f"the header {known} is there twice")
        if known is not None:
            found[known] = value.strip()
    if not found.get(TOKEN):
        return _required()
    try:
        return _understood(found, resource)
    except InvalidArgument as error:
        return _malformed(str(error))


def stale_problem(error: StaleToken) -> Problem:
    return Problem(
        409,
        "Conflict",
        "stale-token",
        "Stale fencing token",
        # No source or nonce of another holder: a client needs to know that it is out, and no more.
        f"token {error.token} of {error.resource!r} is refused: its guard has seen {error.newest}. The lock"
        " went to another holder, and nothing was changed. Drop what was computed, and acquire it again",
        {"resource": error.resource, "token": error.token, "newest": error.newest},
    )


def body_incomplete() -> Problem:
    return Problem(
        400,
        "Bad Request",
        "body-incomplete",
        "The body ends early",
        "it has fewer bytes than Content-Length says, so nothing was done: send the request again",
    )


def body_too_large(most: int) -> Problem:
    return Problem(
        413,
        "Content Too Large",
        "body-too-large",
        "Body too large for a guarded request",
        f"a guarded request is read whole before its transaction begins, and may have {most} bytes",
    )


def _understood(found: Mapping[str, str], resource: str | None) -> Presented:
    if resource is None and RESOURCE not in found:
        raise InvalidArgument(f"the header {RESOURCE} is missing: name what the lock protects")
    named = checked_resource(_unquoted(RESOURCE, found[RESOURCE])) if RESOURCE in found else resource
    if resource is not None and named != resource:
        raise InvalidArgument(
            f"this request is about {resource!r}, and the header {RESOURCE} names {named!r}"
        )
    token = _number(TOKEN, found[TOKEN])
    grant: Grant | int = token
    if SOURCE in found or NONCE in found:
        if SOURCE not in found or NONCE not in found:
            raise InvalidArgument(f"{SOURCE} and {NONCE} belong together: send both or neither")
        fence = Fence(_unquoted(SOURCE, found[SOURCE]), token, _unquoted(NONCE, found[NONCE]))
        peers = tuple(
            _number(PEERS, each.strip()) for each in found.get(PEERS, "").split(",") if each.strip()
        )
        grant = Grant(fence, peers=peers)
    mark_of(grant)
    return Presented(named or "", grant)


def _number(header: str, text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise InvalidArgument(
            f"the header {header} is no number in decimal digits: send lease.token unchanged"
        )
    return int(text)


def _required() -> Problem:
    return Problem(
        428,
        "Precondition Required",
        "token-required",
        "A fencing token is required",
        f"this request changes something that a lock protects: send {TOKEN} and {RESOURCE} of the lease that"
        " you hold",
    )


def _malformed(detail: str) -> Problem:
    return Problem(400, "Bad Request", "malformed-token", "Fencing headers that cannot be read", detail)


def _quoted(text: str) -> str:
    return quote(text, safe=_UNQUOTED)


def _unquoted(header: str, text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgument(f"the header {header} is not percent-encoded UTF-8") from None


_KNOWN: Final = {name.lower(): name for name in NAMES}
