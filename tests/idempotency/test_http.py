"""The header ``Idempotency-Key``, under both middlewares on the memory engine."""

from __future__ import annotations

import asyncio
import io
import json
import secrets
import threading
import wsgiref.util
import wsgiref.validate
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast.fencing.http import Problem
from holdfast.idempotency import IdempotencyMiddleware, WSGIIdempotencyMiddleware
from holdfast.idempotency.http import StoredResponse, key_in, pack, unpack
from support import async_wait_until

pytestmark = pytest.mark.realtime


@dataclass
class Shop:
    """An application that counts what it did."""

    orders: list[bytes] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    began: threading.Event = field(default_factory=threading.Event)
    goes_on: threading.Event = field(default_factory=threading.Event)

    def answer(self, path: str, body: bytes, attempt: Any) -> tuple[int, list[tuple[str, str]], bytes]:
        self.orders.append(body)
        if attempt is not None:
            self.tokens.append(attempt.token)
        if path == "/breaks":
            raise KeyError("broken")
        status = {"/fails": 503, "/refuses": 402, "/busy": 429}.get(path, 201)
        payload = b"x" * 70_000 if path == "/large" else b"order %d" % len(self.orders)
        headers = [
            ("Content-Type", "text/plain"),
            ("Content-Length", str(len(payload))),
            ("Set-Cookie", "a=b"),
        ]
        return status, headers, payload

    def wsgi(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if environ["PATH_INFO"] == "/slow":
            self.began.set()
            assert self.goes_on.wait(60)
        status, headers, payload = self.answer(environ["PATH_INFO"], body, environ.get("holdfast.attempt"))
        start_response(f"{status} Status", headers)
        return [payload]

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        if scope["path"] == "/slow":
            self.began.set()
            await async_wait_until(self.goes_on.is_set)
        status, headers, payload = self.answer(scope["path"], body, scope.get("holdfast.attempt"))
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        half = len(payload) // 2
        await send({"type": "http.response.body", "body": payload[:half], "more_body": True})
        await send({"type": "http.response.body", "body": payload[half:]})


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_replayed(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"

    @property
    def problem(self) -> str:
        assert self.headers["content-type"] == "application/problem+json"
        return str(json.loads(self.body)["type"].rpartition(":")[2])


Ask = Callable[..., Answer]


def ask_wsgi(
    application: Any, method: str, path: str, body: bytes, headers: Mapping[str, str], missing: int = 0
) -> Answer:
    """``missing``: so many bytes of the body never come."""
    environ: dict[str, Any] = {"REQUEST_METHOD": method, "SCRIPT_NAME": "", "PATH_INFO": path}
    environ["QUERY_STRING"] = ""
    wsgiref.util.setup_testing_defaults(environ)
    environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body) + missing)}
    environ |= {"HTTP_" + name.upper().replace("-", "_"): value for name, value in headers.items()}
    started: list[Any] = []

    def start_response(status: str, given: Any, exc_info: Any = None) -> Any:
        started[:] = [status, given]
        return started.append

    chunks = wsgiref.validate.validator(application)(environ, start_response)
    found = b"".join(chunks)
    chunks.close()  # type: ignore[attr-defined]  # the validator's has one
    status, given = started
    return Answer(int(status.split()[0]), {name.lower(): value for name, value in given}, found)


async def ask_asgi(
    application: Any,
    method: str,
    path: str,
    body: bytes,
    headers: Mapping[str, str],
    extensions: Mapping[str, Any] | None = None,
) -> Answer:
    sent: list[Any] = []
    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }
    if extensions is not None:
        scope["extensions"] = extensions
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return messages.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    await application(scope, receive, send)
    given = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], given, b"".join(each.get("body", b"") for each in sent[1:]))


@pytest.fixture(params=["wsgi", "asgi"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def serve(kind: str, shop: Shop, scenario: Callable[[Any], Any], **options: Any) -> None:
    """Run ``await scenario(ask)``, where ``await ask(path, body, key)`` is one request."""
    url = f"memory://{secrets.token_hex(8)}"
    options = {"scope": lambda request: "shop", **options}

    async def run() -> None:
        if kind == "wsgi":
            with holdfast.connect(url) as client:
                application: Any = WSGIIdempotencyMiddleware(shop.wsgi, client, **options)
                await scenario(
                    lambda path, body=b"", key=None, method="POST": asyncio.to_thread(
                        ask_wsgi, application, method, path, body, _headers(key)
                    )
                )
        else:
            async with holdfast.aio.connect(url) as awaited:
                application = IdempotencyMiddleware(shop.asgi, awaited, **options)
                await scenario(
                    lambda path, body=b"", key=None, method="POST": ask_asgi(
                        application, method, path, body, _headers(key)
                    )
                )

    asyncio.run(run())


def _headers(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Idempotency-Key": key}


def test_a_request_that_is_sent_again_gets_the_first_response(kind: str) -> None:
    shop = Shop()

    async def scenario(ask: Any) -> None:
        first = await ask("/orders", b"tea", "k1")
        again = await ask("/orders", b"tea", '"k1"')
        assert (first.status, first.body, first.is_replayed) == (201, b"order 1", False)
        assert (again.status, again.body, again.is_replayed) == (201, b"order 1", True)
        assert again.headers["content-type"] == "text/plain"
        assert "set-cookie" in first.headers
        assert "set-cookie" not in again.headers
        assert (await ask("/orders", b"tea", "k2")).body == b"order 2"
        assert (await ask("/orders", b"tea")).body == b"order 3", "without a key it passes"
        assert (await ask("/orders", b"tea", "k1", "PUT")).body == b"order 4", "PUT is idempotent itself"
        assert (await ask("/refuses", b"", "k3")).status == 402
        refused = await ask("/refuses", b"", "k3")
        assert (refused.status, refused.is_replayed) == (402, True)

    serve(kind, shop, scenario)
    assert len(shop.tokens) == 3


def test_another_payload_is_422(kind: str) -> None:
    shop = Shop()

    async def scenario(ask: Any) -> None:
        await ask("/orders", b"tea", "k")
        for path, body, method in (
            ("/orders", b"coffee", "POST"),
            ("/other", b"tea", "POST"),
            ("/orders", b"tea", "PATCH"),
        ):
            refused = await ask(path, body, "k", method)
            assert (refused.status, refused.problem) == (422, "key-reused")

    serve(kind, shop, scenario)
    assert shop.orders == [b"tea"]


def test_a_second_request_waits_or_gets_that_the_first_is_under_way(kind: str) -> None:
    shop = Shop()

    async def told(ask: Any) -> None:
        first = asyncio.ensure_future(ask("/slow", b"tea", "k"))
        await async_wait_until(shop.began.is_set)
        busy = await ask("/slow", b"tea", "k")
        assert (busy.status, busy.problem) == (409, "in-flight")
        shop.goes_on.set()
        assert (await first).status == 201

    serve(kind, shop, told, timeout=0)
    shop.began.clear()
    shop.goes_on.clear()

    async def waits(ask: Any) -> None:
        first = asyncio.ensure_future(ask("/slow", b"tea", "k"))
        await async_wait_until(shop.began.is_set)
        second = asyncio.ensure_future(ask("/slow", b"tea", "k"))
        shop.goes_on.set()
        assert (await first).body == (await second).body
        assert (await second).is_replayed

    serve(kind, shop, waits)
    assert shop.orders == [b"tea"] * 2


def test_failures_are_not_kept(kind: str) -> None:
    shop = Shop()

    async def scenario(ask: Any) -> None:
        for path in ("/fails", "/busy"):
            for _ in range(2):
                assert not (await ask(path, b"", path)).is_replayed
        for _ in range(2):
            with pytest.raises(KeyError, match="broken"):
                await ask("/breaks", b"", "k")

    serve(kind, shop, scenario)
    assert len(shop.orders) == 6
    assert shop.tokens == sorted(set(shop.tokens)), "each attempt has a higher token"


def test_a_response_too_large_to_keep_is_sent_once(kind: str) -> None:
    shop = Shop()

    async def scenario(ask: Any) -> None:
        assert len((await ask("/large", b"", "k")).body) == 70_000
        again = await ask("/large", b"", "k")
        assert (again.status, again.problem, again.is_replayed) == (410, "response-not-kept", True)

    serve(kind, shop, scenario)
    assert len(shop.orders) == 1


def test_wrong_requests_are_refused(kind: str) -> None:
    shop = Shop()

    async def scenario(ask: Any) -> None:
        assert (await ask("/orders", b"")).problem == "key-required"
        for key in ("", '""', "a b", '"a', "x" * 256):
            assert (await ask("/orders", b"", key)).problem == "malformed-key"
        large = await ask("/orders", b"12345", "k")
        assert (large.status, large.problem) == (413, "body-too-large")
        assert (await ask("/orders", b"1234", "k")).status == 201

    serve(kind, shop, scenario, required=True, max_body_bytes=4)
    assert shop.orders == [b"1234"]


def test_a_body_that_ends_early_is_no_shorter_body() -> None:
    """Its client has gone. The application could not tell: the middleware gives it a length that fits."""
    shop = Shop()
    with holdfast.connect(f"memory://{secrets.token_hex(8)}") as client:
        application = WSGIIdempotencyMiddleware(shop.wsgi, client, scope="shop")
        cut = ask_wsgi(application, "POST", "/orders", b"12", _headers("k"), missing=2)
        assert (cut.status, cut.problem) == (400, "body-incomplete")
        assert ask_wsgi(application, "POST", "/orders", b"1234", _headers("k")).status == 201
    assert shop.orders == [b"1234"]


@pytest.mark.parametrize("wrong", [{"keep": 0}, {"ttl": -1}, {"timeout": "soon"}])
def test_wrong_options_are_refused_at_once(kind: str, wrong: dict[str, Any]) -> None:
    async def scenario(ask: Any) -> None:
        raise AssertionError("not even made")

    with pytest.raises(holdfast.InvalidArgument, match=next(iter(wrong))):
        serve(kind, Shop(), scenario, **wrong)


def test_keys_of_two_users_are_two_keys(kind: str) -> None:
    shop, users = Shop(), iter(["ann", "bob", "ann"])

    async def scenario(ask: Any) -> None:
        assert [(await ask("/orders", b"", "k")).body for _ in range(3)] == [
            b"order 1",
            b"order 2",
            b"order 1",
        ]

    serve(kind, shop, scenario, scope=lambda request: ("user", next(users)))


def test_a_file_is_sent_in_messages_so_that_it_can_be_stored(tmp_path: Path) -> None:
    """Servers that can send a file by its path offer an extension for that."""
    receipt = tmp_path / "receipt"
    receipt.write_bytes(b"paid")

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if "http.response.pathsend" in scope["extensions"]:
            await send({"type": "http.response.pathsend", "path": str(receipt)})
        else:
            await send({"type": "http.response.body", "body": receipt.read_bytes()})
        assert "tls" in scope["extensions"]

    async def main() -> None:
        async with holdfast.aio.connect(f"memory://{secrets.token_hex(8)}") as client:
            served = IdempotencyMiddleware(application, client, scope="shop")
            for _ in range(2):
                answer = await ask_asgi(
                    served, "POST", "/", b"", _headers("k"), {"http.response.pathsend": {}, "tls": {}}
                )
                assert answer.body == b"paid"

    asyncio.run(main())


def test_a_key_in_quotes() -> None:
    assert key_in([("idempotency-key", r'"a \"b\" \\, c"')], False) == r'a "b" \, c'
    assert isinstance(key_in([("Idempotency-Key", "a"), ("idempotency-key", "a")], False), Problem)
    assert key_in([], False) is None


def test_a_status_that_nobody_knows() -> None:
    stored = unpack(pack(StoredResponse(299, [("Date", "now")], b"\n\n")))
    assert (stored.status_line, stored.headers, stored.body) == (
        "299 Unknown",
        [("Idempotent-Replayed", "true")],
        b"\n\n",
    )
