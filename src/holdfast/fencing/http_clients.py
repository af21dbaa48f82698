"""A lease's headers on every request of httpx and requests, and a refusal as ``StaleToken``.

Both libraries are imported when their helper is called. For any other client there is ``fencing_headers``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from .arguments import Presentable
from .http import fencing_headers, stale_token_in

if TYPE_CHECKING:
    import httpx
    import requests

__all__ = ["httpx_auth", "requests_auth"]


def httpx_auth(
    lease_or_token: Presentable, resource: str | None = None, *, auth: httpx.Auth | None = None
) -> httpx.Auth:
    """For ``httpx.Client(auth=…)``, ``httpx.AsyncClient(auth=…)`` or one request.

    A lease that is lost is ``LockLost`` before anything is sent; a server's 409 is ``StaleToken``. ``auth``
    is the authentication besides.
    """
    import httpx

    class FencingAuth(httpx.Auth):
        requires_request_body = auth is not None and auth.requires_request_body
        requires_response_body = True  # The reason of a refusal is in it.

        def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
            request.headers.update(fencing_headers(lease_or_token, resource, method=request.method))
            flow = (auth or httpx.Auth()).auth_flow(request)
            try:
                request = next(flow)
                while True:
                    response = yield request
                    request = flow.send(response)
            except StopIteration:
                pass
            _raise_if_stale(response.status_code, response.headers.get("Content-Type", ""), response.content)

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
    # Looked at before the body is read, which the caller may want to stream.
    if response.status_code == 409:
        _raise_if_stale(409, response.headers.get("Content-Type", ""), response.content)


def _raise_if_stale(status: int, content_type: str, body: bytes) -> None:
    error = stale_token_in(status, content_type, body)
    if error is not None:
        raise error
