"""ASGI middleware: a request with a key that was carried out gets its first response again."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from ..core.canonical import Key
from ..core.lock_options import Duration
from ..errors import Conflict, EngineUnavailable, LockLost, LockTimeout
from ..fencing.asgi import Application, HeldResponse, Receive, Scope, Send, read_body, refuse, replayed
from ..fencing.http import Problem
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
    from ..aio import AsyncClient

__all__ = ["IdempotencyMiddleware"]


class IdempotencyMiddleware:
    """Carries a request with the header ``Idempotency-Key`` out once.

    client: an ``AsyncClient`` whose engine stores the responses.
    scope: whose keys these are: a function of the ASGI scope (the user, the tenant), or a constant. Without
        it, a user could get the response of another user who has the same key.
    methods: those that are concerned; others pass untouched, and so does a request without the header.
    required: refuse a request without the header (400).
    keep: how long a response is kept.
    timeout: how long a second request waits for the first one: 0 not at all, None for ever. Then 409.
    ttl: how soon a request may be carried out again after a crash in its middle.
    max_body_bytes: of a request; larger ones are refused (413).
    stores: which statuses are final. By default all below 500 but 408, 409, 425 and 429.

    The same key with another method, path or body is refused (422). A response that is sent again has the
    header ``Idempotent-Replayed: true``. ``scope["holdfast.attempt"]`` has the attempt.
    """

    def __init__(
        self,
        app: Application,
        client: AsyncClient,
        *,
        scope: Key | Callable[[Scope], Key],
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        settings = self._settings
        if scope["type"] != "http" or scope["method"].upper() not in settings.methods:
            await self._app(scope, receive, send)
            return
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        key = key_in(headers, settings.required)
        if key is None:
            await self._app(scope, receive, send)
            return
        if isinstance(key, Problem):
            await refuse(key, send)
            return
        body = await read_body(receive, settings.max_body_bytes)
        if body is None:
            return
        if isinstance(body, Problem):
            await refuse(body_refused(body, settings.max_body_bytes), send)
            return
        options = settings.operation_options(
            key, scope, scope["method"].upper(), scope["path"], scope.get("query_string", b""), body
        )
        await self._carry_out(options, scope, replayed(body, receive), send)

    async def _carry_out(self, options: dict[str, Any], scope: Scope, receive: Receive, send: Send) -> None:
        held, stored = HeldResponse(), None
        try:
            async with self._client.idempotent(**options) as attempt:
                if attempt.done:
                    stored = unpack(attempt.result)
                else:
                    await self._run(held, {**_plain(scope), ATTEMPT: attempt}, receive)
                    if not self._settings.stores(held.status()):
                        raise NotStored
                    attempt.set_result(pack(_response(held)))
        except NotStored:
            pass
        except ApplicationError as error:
            raise error.error from None
        except (Conflict, LockTimeout, LockLost, EngineUnavailable) as error:
            await refuse(problem_of(error), send)
            return
        if stored is None:
            for message in held.messages:
                await send(message)
            return
        headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in stored.headers
        ]
        await send({"type": "http.response.start", "status": stored.status, "headers": headers})
        await send({"type": "http.response.body", "body": stored.body})

    async def _run(self, held: HeldResponse, scope: Scope, receive: Receive) -> None:
        try:
            await self._app(scope, receive, held.take)
            held.status()  # that there is one
        except Exception as error:
            raise ApplicationError(error) from error


def _plain(scope: Scope) -> Scope:
    """Without extensions by which a server sends what is in no message, for example a file: it could not be
    stored."""
    given = scope.get("extensions") or {}
    extensions = {name: each for name, each in given.items() if not name.startswith("http.response.")}
    return {**scope, "extensions": extensions}


def _response(held: HeldResponse) -> StoredResponse:
    status, headers, body = 0, [], bytearray()
    for message in held.messages:
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = [
                (name.decode("latin-1").lower(), value.decode("latin-1"))
                for name, value in message.get("headers", ())
            ]
        elif message["type"] == "http.response.body":
            body += message.get("body", b"")
    return StoredResponse(status, headers, bytes(body))
