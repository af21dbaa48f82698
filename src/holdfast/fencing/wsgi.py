"""WSGI middleware: a request that changes something runs in a guarded transaction of the database it changes.

The newest token is in that database and nowhere else, so any number of worker processes agree on it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument, StaleToken
from .http import (
    MAX_BODY_BYTES,
    SAFE_METHODS,
    Presented,
    Problem,
    body_incomplete,
    body_too_large,
    read_headers,
    stale_problem,
)
from .sql import transaction

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

__all__ = [
    "CONNECTION",
    "FENCE",
    "HeldResponse",
    "RolledBack",
    "WSGIFencingMiddleware",
    "check_options",
    "headers_of",
    "is_guarded",
    "read_body",
    "refuse",
    "resource_of",
]

CONNECTION = "holdfast.connection"
FENCE = "holdfast.fence"
"""Where the application finds the connection, and what was presented, in the environ (ASGI: the scope)."""

FIRST_ERROR_STATUS = 400


class RolledBack(Exception):
    """The application answered with an error status, so what it wrote is not kept."""


class WSGIFencingMiddleware:
    """Refuses stale holders, and commits what the application writes before its response starts.

        def connect():
            return closing(sqlite3.connect("shop.db"))        # or a psycopg pool's: pool.connection

        application = WSGIFencingMiddleware(application, connect, resource="invoices")

    ``connection`` gives a context manager for each guarded request, whose value is a connection of a kind
    that ``fencing.transaction`` knows, with ``fencing.install`` done. The application writes through
    ``environ["holdfast.connection"]`` and leaves the commit to the middleware: a status of 400 or more, or an
    exception, rolls back. ``resource`` is what requests are about, or a function of the environ that says so;
    without it the client's header decides, and ``environ["holdfast.fence"].resource`` has it.

    Methods that only read (``GET``, ``HEAD``, ``OPTIONS``, ``TRACE``) pass untouched. Guarded requests are
    read whole before the transaction begins, so that a client that stops in the middle locks no other out,
    and responses are sent whole after it.
    """

    def __init__(
        self,
        app: WSGIApplication,
        connection: Callable[[], AbstractContextManager[Any]],
        *,
        resource: str | Callable[[Mapping[str, Any]], str] | None = None,
        unguarded_methods: Collection[str] = SAFE_METHODS,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        check_options(connection, resource, unguarded_methods, max_body_bytes)
        self._app = app
        self._connection = connection
        self._resource = resource
        self._unguarded_methods = frozenset(method.upper() for method in unguarded_methods)
        self._max_body_bytes = max_body_bytes

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        if not is_guarded(environ.get("REQUEST_METHOD"), self._unguarded_methods):
            return self._app(environ, start_response)
        presented = read_headers(headers_of(environ), resource_of(self._resource, environ))
        if isinstance(presented, Problem):
            return refuse(presented, start_response)
        body = read_body(environ, self._max_body_bytes)
        if isinstance(body, Problem):
            return refuse(body, start_response)
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        response = HeldResponse()
        try:
            self._run(environ, presented, response)
        except StaleToken as error:
            return refuse(stale_problem(error), start_response)
        except RolledBack:
            pass
        start_response(response.status, response.headers)
        return [bytes(response.body)]

    def _run(self, environ: dict[str, Any], presented: Presented, response: HeldResponse) -> None:
        with (
            self._connection() as connection,
            transaction(connection, presented.grant, presented.resource),
        ):
            environ[CONNECTION] = connection
            environ[FENCE] = presented
            try:
                response.take(self._app(environ, response.start))
            finally:
                # Not to be used after the transaction.
                del environ[CONNECTION]
            if int(response.status.split(" ", 1)[0]) >= FIRST_ERROR_STATUS:
                raise RolledBack


@dataclass
class HeldResponse:
    """What the application answers, held back until its work is committed."""

    status: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)

    def start(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Callable[[bytes], object]:
        # With exc_info the application takes its first status back; nothing has been sent.
        self.status, self.headers = status, headers
        if exc_info is not None:
            self.body.clear()
        return self.body.extend

    def take(self, chunks: Iterable[bytes]) -> None:
        try:
            for chunk in chunks:
                self.body += chunk
        finally:
            close = getattr(chunks, "close", None)
            if close is not None:
                close()
        if not self.status:
            raise RuntimeError("the application did not call start_response")


def check_options(connection: object, resource: object, methods: object, max_body_bytes: object) -> None:
    """Of a middleware, when it is made."""
    if not callable(connection):
        raise InvalidArgument(
            f"connection is {type(connection).__name__}: pass a function that gives a context manager for"
            " each request, not a connection that requests would share"
        )
    if not callable(resource):
        resource_of(resource, None)  # type: ignore[arg-type]  # it is looked at there
    if isinstance(methods, str):
        raise InvalidArgument(f"unguarded_methods is a collection of methods: write ({methods!r},)")
    if not isinstance(max_body_bytes, int) or isinstance(max_body_bytes, bool) or max_body_bytes < 0:
        raise InvalidArgument(f"max_body_bytes is {max_body_bytes!r}: write a number of bytes, 0 or more")


def is_guarded(method: object, unguarded: Collection[str]) -> bool:
    return str(method).upper() not in unguarded


def resource_of(resource: str | Callable[[Any], str] | None, request: Any) -> str | None:
    """What the server says that a request is about."""
    found = resource(request) if callable(resource) else resource
    if found is not None and (not isinstance(found, str) or not found):
        raise InvalidArgument(f"the middleware's resource is {found!r}: it must be text, and not empty")
    return found


def headers_of(environ: Mapping[str, Any]) -> list[tuple[str, str]]:
    prefix = "HTTP_"
    return [
        (name.removeprefix(prefix).replace("_", "-"), str(value))
        for name, value in environ.items()
        if name.startswith(prefix)
    ]


def read_body(environ: Mapping[str, Any], most: int) -> bytes | Problem:
    length = environ.get("CONTENT_LENGTH") or ""
    if length.isdecimal() and int(length) > most:
        return body_too_large(most)
    # Without a length only a server that ends the input itself may be asked for more than there is.
    size = int(length) if length.isdecimal() else (most + 1 if environ.get("wsgi.input_terminated") else 0)
    body = bytearray()
    while len(body) < size:
        chunk = environ["wsgi.input"].read(size - len(body))
        if not chunk:
            break
        body += chunk
    if length.isdecimal() and len(body) < size:
        return body_incomplete()  # the client has gone; the application could not tell any more
    return body_too_large(most) if len(body) > most else bytes(body)


def refuse(problem: Problem, start_response: StartResponse) -> Iterable[bytes]:
    start_response(f"{problem.status} {problem.reason}", problem.headers())
    return [problem.body]
