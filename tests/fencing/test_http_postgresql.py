"""The middlewares on PostgreSQL: connections that block and that are awaited, and two worker processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import httpx
import psycopg
import pytest

from fencing.against_rule import holder
from fencing.sql_clients import new_database
from fencing.test_http import Answer, as_holder, ask_asgi, ask_wsgi, write_from_many
from holdfast import fencing
from holdfast.model import Fence
from support import run_python, wait_until

pytestmark = [pytest.mark.realtime, pytest.mark.engine("postgresql")]


@pytest.fixture
def url() -> str:
    database = new_database("postgresql")
    where = f"postgresql://postgres@{database.host}:{database.port}/{database.name}"
    with psycopg.connect(where) as db:
        fencing.install(db)
        db.execute("CREATE TABLE invoice (number serial PRIMARY KEY, text text)")
    return where


def invoices(url: str) -> list[str]:
    with psycopg.connect(url) as db:
        return [text for (text,) in db.execute("SELECT text FROM invoice ORDER BY number")]


def newest(url: str) -> Fence | None:
    with psycopg.connect(url) as db:
        return fencing.newest(db, "invoices")


ADD = "INSERT INTO invoice (text) VALUES (%s)"


def wsgi_application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    text = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode()
    environ["holdfast.connection"].execute(ADD, (text,))
    start_response("422 Unprocessable" if text == "422" else "201 Created", [("Content-Type", "text/plain")])
    return [b"done"]


def asgi_application(is_awaited: bool) -> Any:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        text = (await receive())["body"].decode()
        running = scope["holdfast.connection"].execute(ADD, (text,))
        if is_awaited:
            await running
        status = 422 if text == "422" else 201
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    return application


class Connecting:
    """What a pool's ``connection()`` gives: each request has a connection, and it is closed after it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._db: psycopg.AsyncConnection[Any] | None = None

    async def __aenter__(self) -> psycopg.AsyncConnection[Any]:
        self._db = await psycopg.AsyncConnection.connect(self._url)
        return self._db

    async def __aexit__(self, *_: object) -> None:
        assert self._db is not None
        await self._db.close()


def middleware(url: str, is_awaited: bool) -> fencing.FencingMiddleware:
    def connect() -> AbstractContextManager[psycopg.Connection[Any]]:
        return psycopg.connect(url)

    application = asgi_application(is_awaited)
    return fencing.FencingMiddleware(application, (lambda: Connecting(url)) if is_awaited else connect)


def post(url: str, kind: str, text: str, token: int) -> Answer:
    headers = as_holder(token)
    if kind == "wsgi":
        guarded = fencing.WSGIFencingMiddleware(wsgi_application, lambda: psycopg.connect(url))
        return ask_wsgi(guarded, "POST", text.encode(), headers)
    return ask_asgi(middleware(url, kind == "asgi, awaited"), "POST", text.encode(), headers)


@pytest.mark.parametrize("kind", ["wsgi", "asgi", "asgi, awaited"])
def test_the_middleware_writes_in_the_guarded_transaction(url: str, kind: str) -> None:
    assert post(url, kind, "in time", 41).status == 201
    assert post(url, kind, "422", 42).status == 422
    assert newest(url) == Fence("s", 41, "nonce-41"), "what is rolled back advances no guard"
    assert post(url, kind, "new", 42).status == 201
    late = post(url, kind, "late", 41)
    assert (late.status, late.headers["Content-Type"]) == (409, "application/problem+json")
    assert invoices(url) == ["in time", "new"]
    assert newest(url) == Fence("s", 42, "nonce-42")


@pytest.mark.parametrize("is_awaited", [False, True], ids=["blocking", "awaited"])
def test_many_requests_of_one_worker_at_once(url: str, is_awaited: bool) -> None:
    async def main() -> list[int]:
        transport = httpx.ASGITransport(middleware(url, is_awaited))
        async with httpx.AsyncClient(transport=transport, base_url="http://shop", timeout=60) as asking:
            posts = [asking.post("/", content=b"x", headers=as_holder(41)) for _ in range(20)]
            return [found.status_code for found in await asyncio.gather(*posts)]

    assert set(asyncio.run(main())) == {201}
    assert len(invoices(url)) == 20


@pytest.mark.parametrize("is_awaited", [False, True], ids=["blocking", "awaited"])
def test_a_request_that_is_cancelled_while_it_begins_leaves_the_guard_free(
    url: str, is_awaited: bool
) -> None:
    """It waits for another's guard; cancelled, it must not take it when it is free."""

    async def main() -> None:
        transport = httpx.ASGITransport(middleware(url, is_awaited))
        async with httpx.AsyncClient(transport=transport, base_url="http://shop", timeout=60) as asking:
            with psycopg.connect(url) as other:
                fencing.enforce(other, "invoices", holder(41))
                request = asyncio.ensure_future(asking.post("/", content=b"x", headers=as_holder(42)))
                await asyncio.to_thread(wait_until, lambda: is_waited_for(url))
                request.cancel()
                other.rollback()
                with pytest.raises(asyncio.CancelledError):
                    await request
            response = await asking.post("/", content=b"y", headers=as_holder(41))
            assert response.status_code == 201

    asyncio.run(main())
    assert invoices(url) == ["y"]


def is_waited_for(url: str) -> bool:
    with psycopg.connect(url) as db:
        (waiting,) = db.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() or (0,)
        return bool(waiting)


WORKER = """
    import asyncio, sys, uvicorn
    from fencing.test_http_postgresql import middleware

    async def main():
        app = middleware(sys.argv[1], True)
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
        serving = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        print("port", server.servers[0].sockets[0].getsockname()[1])
        await serving

    asyncio.run(main())
"""


@pytest.fixture
def ports(url: str) -> Iterator[list[int]]:
    """Of two worker processes."""
    with ExitStack() as stack:
        workers = [stack.enter_context(run_python(WORKER, url)) for _ in range(2)]
        yield [int(worker.expect("port")) for worker in workers]


def test_the_newest_of_many_writers_wins_in_every_worker(url: str, ports: list[int]) -> None:
    refused = write_from_many(ports, 8)
    log = [int(text.removeprefix("by-")) for text in invoices(url)]
    assert log == sorted(log), "an older holder wrote after a newer one"
    assert log.count(4) == 8
    assert len(log) + len(refused) == 32
