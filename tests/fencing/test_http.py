"""The guard over HTTP: headers, refusals, both middlewares on SQLite, and more than one worker process."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import sqlite3
import threading
import wsgiref.util
import wsgiref.validate
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from fencing.against_rule import holder
from holdfast import fencing
from holdfast.errors import InvalidArgument, LockLost, StaleToken
from holdfast.fencing.arguments import mark_of
from holdfast.fencing.http import (
    MAX_BODY_BYTES,
    Presented,
    Problem,
    fencing_headers,
    read_headers,
    stale_token_in,
)
from holdfast.model import Fence
from support import Process, run_python, wait_until

# Headers


def understood(headers: Mapping[str, str], resource: str | None = None) -> Presented:
    found = read_headers(headers.items(), resource)
    assert isinstance(found, Presented), found
    return found


def refusal(headers: Mapping[str, str], resource: str | None = None) -> Problem:
    found = read_headers(headers.items(), resource)
    assert isinstance(found, Problem), found
    return found


texts = st.text(min_size=1, max_size=40).filter(lambda text: "\0" not in text and text.isprintable())


@given(
    resource=texts,
    source=texts,
    nonce=texts,
    token=st.integers(0, 2**40),
    peers=st.lists(st.integers(0, 2**40)),
)
def test_what_is_sent_is_understood(
    resource: str, source: str, nonce: str, token: int, peers: list[int]
) -> None:
    lease = replace(holder(1), fence=Fence(source, token, nonce), peers=tuple(peers))
    headers = fencing_headers(lease, resource)
    assert all(
        value.isascii() and value.isprintable() and value == value.strip() for value in headers.values()
    )
    found = understood(headers)
    assert found.resource == resource
    assert mark_of(found.grant) == mark_of(lease)


def test_a_bare_token_and_the_locks_own_name() -> None:
    assert fencing_headers(41, "invoices") == {"Fencing-Token": "41", "Fencing-Resource": "invoices"}
    assert understood(fencing_headers(41, "invoices")) == Presented("invoices", 41)
    assert fencing_headers(holder(41))["Fencing-Resource"] == "invoices"
    with pytest.raises(InvalidArgument, match="resource="):
        fencing_headers(41)


def test_read_leases_may_read() -> None:
    reader = holder(41, mode="read")
    with pytest.raises(InvalidArgument, match="read lease"):
        fencing_headers(reader)
    assert fencing_headers(reader, method="GET")["Fencing-Token"] == "41"


GOOD = fencing_headers(holder(41))


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in GOOD.items() if name not in names}


@pytest.mark.parametrize("headers", [{}, without("Fencing-Token"), GOOD | {"Fencing-Token": " "}])
def test_without_a_token(headers: Mapping[str, str]) -> None:
    problem = refusal(headers)
    assert problem.status == 428
    assert json.loads(problem.body)["type"] == "urn:holdfast:fencing:token-required"
    assert ("Content-Type", "application/problem+json") in problem.headers()


@pytest.mark.parametrize(
    ("headers", "complaint"),
    [
        (without("Fencing-Resource"), "Fencing-Resource is missing"),
        (without("Fencing-Nonce"), "belong together"),
        (without("Fencing-Source"), "belong together"),
        (GOOD | {"Fencing-Token": "forty"}, "decimal digits"),
        (GOOD | {"Fencing-Token": "-1"}, "decimal digits"),
        (GOOD | {"Fencing-Token": "41, 41"}, "decimal digits"),
        (GOOD | {"Fencing-Token": "٤١"}, "decimal digits"),
        (GOOD | {"Fencing-Token": "9" * 19}, "outside 0 to"),
        (GOOD | {"Fencing-Token": str(2**62)}, "a day ahead"),
        (GOOD | {"Fencing-Resource": "%ff"}, "percent-encoded UTF-8"),
        (GOOD | {"Fencing-Resource": "%00"}, "NUL"),
        (GOOD | {"Fencing-Resource": "x" * 513}, "513 bytes"),
        (GOOD | {"Fencing-Nonce": ""}, "nonce is empty"),
        (GOOD | {"Fencing-Peers": "1,x"}, "Fencing-Peers is no number"),
        (GOOD | {"fencing-token": "42"}, "there twice"),
    ],
)
def test_headers_that_cannot_be_read(headers: Mapping[str, str], complaint: str) -> None:
    problem = refusal(headers)
    assert problem.status == 400
    assert complaint in problem.detail


def test_the_server_says_what_a_request_is_about() -> None:
    assert understood(without("Fencing-Resource"), "invoices").resource == "invoices"
    assert understood(GOOD, "invoices").resource == "invoices"
    assert "names 'invoices'" in refusal(GOOD, "customers").detail


@pytest.mark.parametrize("middleware", [fencing.FencingMiddleware, fencing.WSGIFencingMiddleware])
@pytest.mark.parametrize(
    ("connection", "options", "complaint"),
    [
        (object(), {}, "not a connection that requests would share"),
        (open, {"resource": ""}, "must be text"),
        (open, {"resource": 5}, "must be text"),
        (open, {"unguarded_methods": "GET"}, r"\('GET',\)"),
        (open, {"max_body_bytes": -1}, "0 or more"),
    ],
)
def test_middlewares_refuse_wrong_options_when_they_are_made(
    middleware: Any, connection: Any, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        middleware(None, connection, **options)


@pytest.mark.parametrize(
    ("status", "content_type", "body"),
    [
        (200, "application/problem+json", b"{}"),
        (409, "text/html", b"<html>"),
        (409, "application/problem+json", b"\xff"),
        (409, "application/problem+json", b"[" * 100_000),
        (409, "application/problem+json", b"[]"),
        (409, "application/problem+json", b'{"type": "about:blank"}'),
    ],
)
def test_other_responses_are_no_stale_token(status: int, content_type: str, body: bytes) -> None:
    assert stale_token_in(status, content_type, body) is None


# Applications


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_database(tmp_path / "shop.db")


def make_database(file: Path) -> Path:
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        fencing.install(db)
        db.execute("CREATE TABLE invoice (text TEXT)")
    return file


def invoices(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return [text for (text,) in db.execute("SELECT text FROM invoice ORDER BY rowid")]


def newest(path: Path) -> Fence | None:
    with closing(sqlite3.connect(path)) as db:
        return fencing.newest(db, "invoices")


def wsgi_application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Adds the body as an invoice; a body that begins with a status answers with it, after writing."""
    db = environ.get("holdfast.connection")
    if db is None:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"read"]
    text = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode()
    db.execute("INSERT INTO invoice VALUES (?)", (text,))
    if text == "raise":
        raise KeyError(text)
    status = text if text[:1].isdecimal() else "201 Created"
    write = start_response(status, [("Content-Type", "text/plain")])
    write(b"by ")
    return [str(environ["holdfast.fence"].resource).encode()]


class Answer:
    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body


Ask = Callable[..., Answer]


def wsgi_client(path: Path, **options: Any) -> Ask:
    def connect() -> Any:
        return closing(sqlite3.connect(path))

    application = fencing.WSGIFencingMiddleware(wsgi_application, connect, **options)

    def ask(method: str = "POST", body: bytes = b"x", headers: Mapping[str, str] | None = None) -> Answer:
        return ask_wsgi(application, method, body, headers or {})

    return ask


def ask_wsgi(application: Any, method: str, body: bytes, headers: Mapping[str, str]) -> Answer:
    """One request, and whether it keeps to WSGI."""
    environ: dict[str, Any] = {"REQUEST_METHOD": method, "CONTENT_LENGTH": str(len(body)), "QUERY_STRING": ""}
    environ |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
    wsgiref.util.setup_testing_defaults(environ)
    environ["wsgi.input"] = io.BytesIO(body)
    answered: list[Any] = []
    asked: Any = wsgiref.validate.validator(application)
    chunks = asked(environ, lambda *each: answered.append(each))
    try:
        whole = b"".join(chunks)
    finally:
        chunks.close()
    ((status, found),) = answered
    return Answer(int(status.split()[0]), dict(found), whole)


async def asgi_application(scope: Any, receive: Any, send: Any) -> None:
    """The same."""
    db = scope.get("holdfast.connection")
    if db is None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"read"})
        return
    text = (await receive())["body"].decode()
    db.execute("INSERT INTO invoice VALUES (?)", (text,))
    if text == "raise":
        raise KeyError(text)
    status = int(text.split()[0]) if text[:1].isdecimal() else 201
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b"by ", "more_body": True})
    await send({"type": "http.response.body", "body": scope["holdfast.fence"].resource.encode()})


def asgi_middleware(path: Path, **options: Any) -> fencing.FencingMiddleware:
    def connect() -> Any:
        return closing(sqlite3.connect(path, check_same_thread=False))

    return fencing.FencingMiddleware(asgi_application, connect, **options)


def asgi_client(path: Path, **options: Any) -> Ask:
    middleware = asgi_middleware(path, **options)

    def ask(method: str = "POST", body: bytes = b"x", headers: Mapping[str, str] | None = None) -> Answer:
        return ask_asgi(middleware, method, body, headers or {})

    return ask


def ask_asgi(application: Any, method: str, body: bytes, headers: Mapping[str, str]) -> Answer:
    async def main() -> Answer:
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            found = await client.request(method, "/", content=body, headers=headers)
            return Answer(found.status_code, {k.title(): v for k, v in found.headers.items()}, found.content)

    return asyncio.run(main())


@pytest.fixture(params=[wsgi_client, asgi_client], ids=["wsgi", "asgi"])
def client(request: pytest.FixtureRequest) -> Callable[..., Ask]:
    made: Callable[..., Ask] = request.param
    return made


def as_holder(token: int) -> dict[str, str]:
    return fencing_headers(holder(token))


@pytest.mark.realtime
class TestMiddleware:
    def test_what_the_application_writes_is_kept(self, path: Path, client: Callable[..., Ask]) -> None:
        answer = client(path)(body=b"tea", headers=as_holder(41))
        assert (answer.status, answer.body) == (201, b"by invoices")
        assert (invoices(path), newest(path)) == (["tea"], Fence("s", 41, "nonce-41"))

    def test_a_stale_holder_is_refused(self, path: Path, client: Callable[..., Ask]) -> None:
        ask = client(path)
        ask(body=b"new", headers=as_holder(42))
        answer = ask(body=b"late", headers=as_holder(41))
        assert answer.status == 409
        assert answer.headers["Content-Type"] == "application/problem+json"
        document = json.loads(answer.body)
        assert document["type"] == "urn:holdfast:fencing:stale-token"
        assert (document["resource"], document["token"], document["newest"]) == ("invoices", 41, 42)
        assert "nonce-42" not in document["detail"]
        assert invoices(path) == ["new"]

    def test_without_and_with_broken_headers(self, path: Path, client: Callable[..., Ask]) -> None:
        ask = client(path)
        assert ask().status == 428
        assert ask(headers=as_holder(41) | {"Fencing-Token": "x"}).status == 400
        assert (invoices(path), newest(path)) == ([], None)

    def test_reading_needs_no_token(self, path: Path, client: Callable[..., Ask]) -> None:
        answer = client(path)("GET", b"")
        assert (answer.status, answer.body) == (200, b"read")

    def test_an_error_status_rolls_back(self, path: Path, client: Callable[..., Ask]) -> None:
        answer = client(path)(body=b"422 Unprocessable", headers=as_holder(41))
        assert (answer.status, answer.body) == (422, b"by invoices")
        assert (invoices(path), newest(path)) == ([], None)

    def test_so_does_an_exception(self, path: Path, client: Callable[..., Ask]) -> None:
        with pytest.raises(KeyError):
            client(path)(body=b"raise", headers=as_holder(41))
        assert (invoices(path), newest(path)) == ([], None)

    def test_a_body_has_a_bound(self, path: Path, client: Callable[..., Ask]) -> None:
        assert client(path, max_body_bytes=3)(body=b"1234", headers=as_holder(41)).status == 413
        assert client(path)(body=bytes(MAX_BODY_BYTES + 1), headers=as_holder(41)).status == 413
        assert client(path, max_body_bytes=4)(body=b"abcd", headers=as_holder(41)).status == 201
        assert invoices(path) == ["abcd"]

    def test_the_server_names_the_resource(self, path: Path, client: Callable[..., Ask]) -> None:
        ask = client(path, resource=lambda request: "customers")
        assert ask(headers=as_holder(41)).status == 400
        assert ask(headers=fencing_headers(41, "customers")).body == b"by customers"
        with pytest.raises(InvalidArgument, match="middleware's resource"):
            client(path, resource="")(headers=as_holder(41))

    def test_a_database_without_a_guard_is_the_servers_fault(
        self, tmp_path: Path, client: Callable[..., Ask]
    ) -> None:
        with pytest.raises(InvalidArgument, match=r"fencing\.install"):
            client(tmp_path / "empty.db")(headers=as_holder(41))


@pytest.mark.realtime
def test_an_application_that_does_not_answer(path: Path) -> None:
    async def silent(scope: Any, receive: Any, send: Any) -> None:
        scope["holdfast.connection"].execute("INSERT INTO invoice VALUES ('x')")

    transport = httpx.ASGITransport(
        fencing.FencingMiddleware(silent, lambda: closing(sqlite3.connect(path, check_same_thread=False)))
    )

    async def main() -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as asking:
            await asking.post("/", headers=as_holder(41))

    with pytest.raises(RuntimeError, match="without a response"):
        asyncio.run(main())
    assert invoices(path) == []


@pytest.mark.realtime
def test_many_requests_of_one_worker_at_once(path: Path) -> None:
    """More of them wait to begin than there are threads; each is committed all the same."""
    middleware = asgi_middleware(path)

    async def main() -> list[int]:
        transport = httpx.ASGITransport(middleware)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop", timeout=60) as asking:
            posts = [asking.post("/", content=b"x", headers=as_holder(41)) for _ in range(40)]
            return [found.status_code for found in await asyncio.gather(*posts)]

    assert set(asyncio.run(main())) == {201}
    assert len(invoices(path)) == 40


@pytest.mark.realtime
def test_a_request_that_is_cancelled_while_it_begins_leaves_the_database_free(path: Path) -> None:
    middleware = asgi_middleware(path)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x"}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    async def main() -> None:
        headers = [(name.encode(), value.encode()) for name, value in as_holder(41).items()]
        scope = {"type": "http", "method": "POST", "headers": headers, "path": "/"}
        with closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN IMMEDIATE")
            request = asyncio.ensure_future(middleware(scope, receive, send))
            await asyncio.to_thread(wait_until, is_beginning)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            other.rollback()
        await asyncio.to_thread(wait_until, is_free)

    def is_beginning() -> bool:
        return any(thread.name.startswith("fencing-begin") for thread in threading.enumerate())

    def is_free() -> bool:
        with closing(sqlite3.connect(path, timeout=0)) as db:
            try:
                db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            db.rollback()
            return True

    asyncio.run(main())
    assert (invoices(path), newest(path)) == ([], None)


@pytest.mark.realtime
def test_a_loop_that_ends_while_a_request_begins_leaves_the_database_free(path: Path) -> None:
    closed: list[sqlite3.Connection] = []

    @contextmanager
    def connecting() -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(path, check_same_thread=False)
        try:
            yield db
        finally:
            db.close()
            closed.append(db)

    async def never(*_: Any) -> None:
        raise AssertionError("the request was cancelled before its transaction had begun")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x"}

    async def main() -> None:
        headers = [(name.encode(), value.encode()) for name, value in as_holder(41).items()]
        scope = {"type": "http", "method": "POST", "headers": headers, "path": "/"}
        middleware = fencing.FencingMiddleware(never, connecting, resource="invoices")
        request = asyncio.ensure_future(middleware(scope, receive, never))
        await asyncio.to_thread(
            wait_until, lambda: any(t.name.startswith("fencing-begin") for t in threading.enumerate())
        )
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        asyncio.run(main())
        other.rollback()  # only now the thread gets on
    wait_until(lambda: len(closed) == 1)
    assert newest(path) is None


def test_what_is_not_http_passes_untouched() -> None:
    seen: list[str] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    middleware = fencing.FencingMiddleware(application, lambda: closing(sqlite3.connect(":memory:")))
    for kind in ("lifespan", "websocket"):
        with pytest.raises(StopIteration):
            middleware({"type": kind}, None, None).send(None)  # type: ignore[arg-type]  # it waits for nothing
    assert seen == ["lifespan", "websocket"]


# Real servers: two processes, one database


WSGI_WORKER = """
    import socketserver, sys, wsgiref.simple_server
    from fencing.test_http import wsgi_client_application

    class Threaded(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
        daemon_threads = True

    server = wsgiref.simple_server.make_server("127.0.0.1", 0, wsgi_client_application(sys.argv[1]), Threaded)
    print("port", server.server_port)
    server.serve_forever()
"""

ASGI_WORKER = """
    import asyncio, sys, uvicorn
    from pathlib import Path
    from fencing.test_http import asgi_middleware

    async def main():
        app = asgi_middleware(Path(sys.argv[1]))
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
        serving = asyncio.ensure_future(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        print("port", server.servers[0].sockets[0].getsockname()[1])
        await serving

    asyncio.run(main())
"""

CLIENT = """
    import sys
    import holdfast, httpx, requests
    from holdfast import fencing
    from holdfast.errors import LockLost, StaleToken

    url, library = sys.argv[1:]
    with holdfast.connect() as locks:
        lease = locks.lock("invoices", ttl=1, if_lost="note").acquire()
        print("token", lease.token)
        for line in sys.stdin:
            presented, text = (lease if line.startswith("lease") else lease.fence), line.split()[1]
            try:
                if library == "httpx":
                    auth = fencing.httpx_auth(presented, "invoices")
                    print("status", httpx.post(url, content=text, auth=auth, timeout=60).status_code)
                else:
                    auth = fencing.requests_auth(presented, "invoices")
                    print("status", requests.post(url, data=text, auth=auth, timeout=60).status_code)
            except StaleToken as refusal:
                print("refused", refusal.token, refusal.newest, refusal.resource)
            except LockLost:
                print("lost")
"""


def wsgi_client_application(path: str) -> Any:
    return fencing.WSGIFencingMiddleware(wsgi_application, lambda: closing(sqlite3.connect(path)))


@dataclass(frozen=True)
class Workers:
    """Two worker processes on one database, and the client's library for the tests of them."""

    path: Path
    ports: list[int]
    library: str


@pytest.fixture(
    scope="module", params=[(WSGI_WORKER, "requests"), (ASGI_WORKER, "httpx")], ids=["wsgi", "asgi"]
)
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    code, library = request.param
    path = make_database(tmp_path_factory.mktemp("workers") / "shop.db")
    with ExitStack() as stack:
        processes: list[Process] = [stack.enter_context(run_python(code, str(path))) for _ in range(2)]
        yield Workers(path, [int(each.expect("port")) for each in processes], library)


@pytest.fixture
def workers(started: Workers) -> Workers:
    """With an empty database."""
    with closing(sqlite3.connect(started.path)) as db, db:
        db.execute("DELETE FROM invoice")
        db.execute("DELETE FROM holdfast_fence")
    return started


@pytest.mark.realtime
def test_a_client_that_was_stopped_is_refused_by_every_worker(tmp_path: Path, workers: Workers) -> None:
    """Its lock expires while it is stopped; another takes it and writes; then it goes on."""
    first, second = workers.ports
    locks_url = {"HOLDFAST_URL": f"sqlite:///{tmp_path}/locks.db"}
    with run_python(CLIENT, f"http://127.0.0.1:{first}", workers.library, env=locks_url) as zombie:
        old = int(zombie.expect("token"))
        zombie.send("lease in-time")
        assert zombie.expect("status") == "201"
        zombie.stop()
        with (
            holdfast.connect(locks_url["HOLDFAST_URL"]) as locks,
            locks.lock("invoices", timeout=30) as lease,
        ):
            answer = httpx.post(
                f"http://127.0.0.1:{second}", content="new", auth=fencing.httpx_auth(lease), timeout=60
            )
            assert (answer.status_code, answer.text) == (201, "by invoices")
            zombie.send("fence late")
            zombie.send("lease later")
            zombie.cont()
            assert zombie.expect("refused").split() == [str(old), str(lease.token), "invoices"]
            zombie.expect("lost")
    assert invoices(workers.path) == ["in-time", "new"]


@pytest.mark.realtime
def test_a_client_that_stops_within_its_request_locks_nobody_out(workers: Workers) -> None:
    first, second = workers.ports
    with closing(http.client.HTTPConnection("127.0.0.1", first, timeout=60)) as stopped:
        stopped.putrequest("POST", "/")
        for name, value in (as_holder(41) | {"Content-Length": "4"}).items():
            stopped.putheader(name, value)
        stopped.endheaders(b"la")
        headers = as_holder(42)
        assert requests.post(f"http://127.0.0.1:{second}", data="new", headers=headers, timeout=60).ok
        stopped.send(b"te")
        assert stopped.getresponse().status == 409
    assert invoices(workers.path) == ["new"]


@pytest.mark.realtime
def test_the_newest_of_many_writers_wins_in_every_worker(workers: Workers) -> None:
    refused = write_from_many(workers.ports, 10)
    log = [int(text.removeprefix("by-")) for text in invoices(workers.path)]
    assert log == sorted(log), "an older holder wrote after a newer one"
    assert log.count(4) == 10
    assert len(log) + len(refused) == 40


def write_from_many(ports: list[int], times: int) -> list[int]:
    """Four holders who all believe to have the lock write through all workers. A token for each refusal."""
    together = threading.Barrier(4)
    refused: list[int] = []

    def write(token: int) -> None:
        with requests.Session() as session:
            session.trust_env = False
            session.auth = fencing.requests_auth(holder(token))
            together.wait(20)
            for number in range(times):
                try:
                    url = f"http://127.0.0.1:{ports[number % len(ports)]}"
                    assert session.post(url, data=f"by-{token}", timeout=60).status_code == 201
                except StaleToken:
                    refused.append(token)

    threads = [threading.Thread(target=write, args=(token,)) for token in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return refused


# Clients


def answering(status: int, document: Mapping[str, Any]) -> httpx.MockTransport:
    def answer(request: httpx.Request) -> httpx.Response:
        headers = {"Content-Type": "application/problem+json", "X-Asked": json.dumps(dict(request.headers))}
        return httpx.Response(status, headers=headers, content=json.dumps(document).encode())

    return httpx.MockTransport(answer)


STALE = {
    "type": "urn:holdfast:fencing:stale-token",
    "resource": "invoices",
    "token": 41,
    "newest": 42,
    "detail": "out",
}


def test_httpx_sends_the_headers_beside_another_authentication() -> None:
    auth = fencing.httpx_auth(holder(41), auth=httpx.BasicAuth("user", "password"))
    with httpx.Client(transport=answering(200, {}), auth=auth) as asking:
        sent = json.loads(asking.post("http://shop/").headers["X-Asked"])
    assert {name.lower(): value for name, value in as_holder(41).items()}.items() <= sent.items()
    assert sent["authorization"].startswith("Basic ")


class SignsByIO(httpx.Auth):
    """An authentication that asks somebody: httpx has it bring both flows, and no ``auth_flow``."""

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["Authorization"] = "asked"
        yield request

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        request.headers["Authorization"] = "awaited"
        yield request


@pytest.mark.realtime
def test_httpx_beside_an_authentication_that_does_io() -> None:
    auth = fencing.httpx_auth(holder(41), auth=SignsByIO())
    with httpx.Client(transport=answering(200, {}), auth=auth) as asking:
        assert json.loads(asking.post("http://shop/").headers["X-Asked"])["authorization"] == "asked"

    async def main() -> None:
        async with httpx.AsyncClient(transport=answering(200, {}), auth=auth) as asking:
            answer = await asking.post("http://shop/")
            assert json.loads(answer.headers["X-Asked"])["authorization"] == "awaited"

    asyncio.run(main())
    pair: Any = ("user", "password")
    with pytest.raises(InvalidArgument, match=r"httpx\.BasicAuth"):
        fencing.httpx_auth(holder(41), auth=pair)


def test_httpx_leaves_a_body_to_be_streamed() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=iter([b"a", b"b"])))
    with (
        httpx.Client(transport=transport, auth=fencing.httpx_auth(holder(41))) as asking,
        asking.stream("GET", "http://shop/") as answer,
    ):
        assert not answer.is_stream_consumed
        assert b"".join(answer.iter_bytes()) == b"ab"


def test_httpx_raises_what_the_server_refused() -> None:
    with (
        httpx.Client(transport=answering(409, STALE), auth=fencing.httpx_auth(holder(41))) as asking,
        pytest.raises(StaleToken, match="out") as caught,
    ):
        asking.post("http://shop/")
    assert (caught.value.resource, caught.value.token, caught.value.newest) == ("invoices", 41, 42)
    with httpx.Client(transport=answering(409, {}), auth=fencing.httpx_auth(holder(41))) as asking:
        assert asking.post("http://shop/").status_code == 409


@pytest.mark.realtime
def test_httpx_awaited() -> None:
    async def main() -> None:
        async with httpx.AsyncClient(
            transport=answering(409, STALE), auth=fencing.httpx_auth(holder(41))
        ) as asking:
            with pytest.raises(StaleToken):
                await asking.post("http://shop/")

    asyncio.run(main())


@pytest.mark.realtime
def test_a_lost_lease_sends_nothing() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise AssertionError("it was sent")

    with holdfast.connect("memory://") as locks, locks.lock("x", if_lost="note") as lease:
        locks.break_lock("x", reason="test")
        assert lease.wait_lost(20)
        with (
            httpx.Client(transport=httpx.MockTransport(fail), auth=fencing.httpx_auth(lease)) as asking,
            pytest.raises(LockLost),
        ):
            asking.post("http://shop/")


def test_requests_sends_the_headers_beside_another_authentication() -> None:
    auth = fencing.requests_auth(holder(41), auth=requests.auth.HTTPBasicAuth("user", "password"))
    prepared = requests.Request("POST", "http://shop/", auth=auth).prepare()
    assert as_holder(41).items() <= dict(prepared.headers).items()
    assert prepared.headers["Authorization"].startswith("Basic ")


@pytest.mark.realtime
def test_importing_the_guards_stays_light() -> None:
    code = """
        import sys
        from holdfast import fencing
        heavy = {"asyncio", "boto3", "concurrent.futures", "httpx", "requests", "urllib.request"}
        own = {f"holdfast.fencing.{name}" for name in ("asgi", "file", "http", "object_store", "wsgi")}
        print("loaded:", sorted((heavy | own) & set(sys.modules)))
    """
    with run_python(code) as child:
        assert child.expect("loaded:") == "[]"
