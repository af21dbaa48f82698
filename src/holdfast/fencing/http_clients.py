"""A lease's headers on every request of httpx and requests, and a refusal as ``StaleToken``.

Both libraries are imported when their helper is called. For any other client there is ``fencing_headers``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Any, Final

from ..errors import InvalidArgument
from .arguments import Presentable
from .http import fencing_headers, stale_token_in

if TYPE_CHECKING:
    import httpx
    import requests

__all__ = ["httpx_auth", "requests_auth"]

CONFLICT: Final = 409
"""The status of a refusal; its body has the reason."""


def httpx_auth(
    lease_or_token: Presentable, resource: str | None = None, *, auth: httpx.Auth | None = None
) -> httpx.Auth:
    """For ``httpx.Client(auth=…)``, ``httpx.AsyncClient(auth=…)`` or one request.

    A lease that is lost is ``LockLost`` before anything is sent; a server's 409 is ``StaleToken``. ``auth``
    is the authentication besides.
    """
    import httpx

    if auth is not None and not isinstance(auth, httpx.Auth):
        raise InvalidArgument(f"auth is {type(auth).__name__}: pass an httpx.Auth, as httpx.BasicAuth is")
    inner = auth or httpx.Auth()

    class FencingAuth(httpx.Auth):
        # Both flows, for those of an authentication that does I/O are all that it has. A body is read where
        # it may have the reason of a refusal: any other the caller may want to stream.

        def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
            request.headers.update(fencing_headers(lease_or_token, resource, method=request.method))
            with closing(inner.sync_auth_flow(request)) as flow:
                request = next(flow)
                while True:
                    response = yield request
                    try:
                        request = flow.send(response)
                    except StopIteration:
                        break
            if response.status_code == CONFLICT:
                response.read()
                _raise_if_stale(response.headers.get("Content-Type", ""), response.content)

        async def async_auth_flow(
            self, request: httpx.Request
        ) -> AsyncGenerator[httpx.Request, httpx.Response]:
            request.headers.update(fencing_headers(lease_or_token, resource, method=request.method))
            async with aclosing(inner.async_auth_flow(request)) as flow:
                request = await anext(flow)
                while True:
                    response = yield request
                    try:
                        request = await flow.asend(response)
                    except StopAsyncIteration:
                        break
            if response.status_code == CONFLICT:
                await response.aread()
                _raise_if_stale(response.headers.get("Content-Type", ""), response.content)

    return FencingAuth()


def requests_auth(
    lease_or_token: Presentable,
    resource: str | None = None,
    *,
    auth: Callable[[requests.PreparedRequest], requests.PreparedRequest] | None = None,
) -> requests.auth.AuthBase:
    """For ``requests.post(…, auth=…)`` or ``session.auth``; otherwise as ``httpx_auth``."""
    from requests.auth import AuthBase

    class FencingAuth(AuthBase):
        def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
            headers = fencing_headers(lease_or_token, resource, method=request.method or "POST")
            request.headers.update(headers)
            request.hooks.setdefault("response", []).append(_check_response)
            return request if auth is None else auth(request)

    return FencingAuth()


def _check_response(response: requests.Response, **_: Any) -> None:
    if response.status_code == CONFLICT:
        _raise_if_stale(response.headers.get("Content-Type", ""), response.content)


def _raise_if_stale(content_type: str, body: bytes) -> None:
    error = stale_token_in(CONFLICT, content_type, body)
    if error is not None:
        raise error
