"""WSGI middleware: a request with a key that was carried out gets its first response again."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..core.canonical import Key
from ..core.lock_options import Duration
from ..errors import Conflict, EngineUnavailable, LockLost, LockTimeout
from ..fencing.http import Problem
from ..fencing.wsgi import HeldResponse, headers_of, read_body, refuse
from .http import (
    ATTEMPT,
    MAX_BODY_BYTES,
    METHODS,
    ApplicationError,
    NotStored,
    Settings,
    StoredResponse,
    body_refused,
    key_in,
    pack,
    problem_of,
    stores,
    unpack,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

    from ..client import Client

__all__ = ["WSGIIdempotencyMiddleware"]


class WSGIIdempotencyMiddleware:
    """Carries a request with the header ``Idempotency-Key`` out once.

    ``client`` is a ``Client``, and ``scope`` a function of the environ or a constant; everything else is as
    ``IdempotencyMiddleware`` has it. ``environ["holdfast.attempt"]`` has the attempt.
    """

    def __init__(
        self,
        app: WSGIApplication,
        client: Client,
        *,
        scope: Key | Callable[[Mapping[str, Any]], Key],
        methods: Collection[str] = METHODS,
        required: bool = False,
        keep: Duration = 86_400.0,
        timeout: Duration | None = None,
        ttl: Duration = 30.0,
        max_body_bytes: int = MAX_BODY_BYTES,
        stores: Callable[[int], bool] = stores,
    ) -> None:
        self._app = app
        self._client = client
        self._settings = Settings.of(
            scope,
            methods,
            required=required,
            keep=keep,
            timeout=timeout,
            ttl=ttl,
            max_body_bytes=max_body_bytes,
            stores=stores,
        )
        client.idempotent("checked", **self._settings.durations)  # refused now, not at the first request

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        settings = self._settings
        method = str(environ.get("REQUEST_METHOD")).upper()
        if method not in settings.methods:
            return self._app(environ, start_response)
        key = key_in(headers_of(environ), settings.required)
        if key is None:
            return self._app(environ, start_response)
        if isinstance(key, Problem):
            return refuse(key, start_response)
        body = read_body(environ, settings.max_body_bytes)
        if isinstance(body, Problem):
            return refuse(body_refused(body, settings.max_body_bytes), start_response)
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        query = environ.get("QUERY_STRING", "").encode("latin-1")
        options = settings.operation_options(key, environ, method, path, query, body)
        return self._carry_out(options, environ, start_response)

    def _carry_out(
        self, options: dict[str, Any], environ: dict[str, Any], start_response: StartResponse
    ) -> Iterable[bytes]:
        held, stored = HeldResponse(), None
        try:
            with self._client.idempotent(**options) as attempt:
                if attempt.done:
                    stored = unpack(attempt.result)
                else:
                    self._run(held, {**environ, ATTEMPT: attempt})
                    status = int(held.status.split(" ", 1)[0])
                    if not self._settings.stores(status):
                        raise NotStored
                    attempt.set_result(pack(StoredResponse(status, held.headers, bytes(held.body))))
        except NotStored:
            pass
        except ApplicationError as error:
            raise error.error from None
        except (Conflict, LockTimeout, LockLost, EngineUnavailable) as error:
            return refuse(problem_of(error), start_response)
        if stored is None:
            start_response(held.status, held.headers)
            return [bytes(held.body)]
        start_response(stored.status_line, stored.headers)
        return [stored.body]

    def _run(self, held: HeldResponse, environ: dict[str, Any]) -> None:
        try:
            held.take(self._app(environ, held.start))
        except Exception as error:
            raise ApplicationError(error) from error
