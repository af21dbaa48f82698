"""``timeout=0`` is kept where there is no engine to be had: at a closed port, at a silent one, at one that
speaks something else, with a wrong password, without a folder. Bounds are generous: it was five seconds."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast.errors import EngineUnavailable
from holdfast.lab.servers import Etcd, PostgreSQL, Redis
from holdfast.protocols.client_state import ClientState
from holdfast.protocols.records import acquisition, releases
from support import interrupted_after

SECONDS = 2.5
"""Half of ``io_timeout``, and five times what is promised."""

CLOSE_SECONDS = 1.0
"""How long closing a client waits for the end of its sessions."""

URLS = {
    "redis": "redis://127.0.0.1:{port}/0",
    "rediss": "rediss://127.0.0.1:{port}/0",
    "redis+cluster": "redis+cluster://127.0.0.1:{port}",
    "redis+sentinel": "redis+sentinel://127.0.0.1:{port}?service=m",
    "redlock": "redlock://127.0.0.1:{port},127.0.0.2:{port},127.0.0.3:{port}",
    "etcd": "etcd://127.0.0.1:{port}",
    "etcd with TLS": "etcd://127.0.0.1:{port}?tls=yes",
    "zookeeper": "zookeeper://127.0.0.1:{port}",
    "postgresql": "postgresql://u:secret@127.0.0.1:{port}/d",
    "postgresql with TLS": "postgresql://u:secret@127.0.0.1:{port}/d?sslmode=require",
    "postgresql+advisory": "postgresql+advisory://u:secret@127.0.0.1:{port}/d",
}

HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n400 Bad Request"
TLS_ALERT = b"\x15\x03\x01\x00\x02\x02\x46"
"""What a server that wants TLS answers to one that does not speak it."""
RESP = b"-ERR unknown command\r\n"

DRIVERS = pytest.mark.parametrize("driver", ["threads", "asyncio"])
ENGINES = pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=pytest.mark.engine(name.split()[0])) for name in URLS]
)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Bound and not listened to, so that nobody else gets it meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def serve() -> Iterator[Callable[[bytes | None], int]]:
    """A port where every client is answered this, whatever it says; None: not a word."""
    with contextlib.ExitStack() as stack:
        yield lambda answer: stack.enter_context(_served(answer))


@contextlib.contextmanager
def _served(answer: bytes | None) -> Iterator[int]:
    accepted: list[socket.socket] = []
    answering: list[threading.Thread] = []

    def talk(client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client.recv(100)
            client.sendall(answer or b"")
            client.shutdown(socket.SHUT_WR)

    def work() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                accepted.append(client)
                if answer is not None:
                    answering.append(threading.Thread(target=talk, args=(client,)))
                    answering[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for client in accepted:
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
            for each in answering:
                each.join()
            for client in accepted:
                client.close()


def refusal(driver: str, url: str, timeout: float = 0) -> tuple[str, float]:
    """What an acquire with no time says, and how long it took."""
    message, seconds, _ = refusal_and_closing(driver, url, timeout)
    return message, seconds


def refusal_and_closing(driver: str, url: str, timeout: float = 0) -> tuple[str, float, float]:
    """The same, and how long closing the client took."""

    def threads() -> tuple[str, float, float]:
        with holdfast.connect(url) as locks:
            lock = locks.lock("x")
            began = time.monotonic()
            with pytest.raises(EngineUnavailable) as raised:
                lock.acquire(timeout=timeout)
            refused = time.monotonic()
        return str(raised.value), refused - began, time.monotonic() - refused

    async def loop() -> tuple[str, float, float]:
        async with holdfast.aio.connect(url) as locks:
            lock = locks.lock("x")
            began = time.monotonic()
            with pytest.raises(EngineUnavailable) as raised:
                await lock.acquire(timeout=timeout)
            refused = time.monotonic()
        return str(raised.value), refused - began, time.monotonic() - refused

    return threads() if driver == "threads" else asyncio.run(loop())


@ENGINES
@DRIVERS
def test_a_closed_port_is_reported_at_once(driver: str, engine: str, closed_port: int) -> None:
    message, seconds = refusal(driver, URLS[engine].format(port=closed_port))
    assert seconds < SECONDS
    assert str(closed_port) in message
    assert "efused" in message or "Connect call failed" in message
    assert "secret" not in message


@ENGINES
@DRIVERS
def test_a_silent_port_is_given_up(driver: str, engine: str, serve: Callable[[bytes | None], int]) -> None:
    port = serve(None)
    message, seconds, closing = refusal_and_closing(driver, URLS[engine].format(port=port))
    assert seconds < SECONDS
    assert closing < CLOSE_SECONDS, "it waited for the end of a session that there never was"
    assert str(port) in message
    assert "secret" not in message


@ENGINES
@DRIVERS
@pytest.mark.parametrize("answer", [HTTP, TLS_ALERT, RESP], ids=["http", "tls", "resp"])
def test_a_foreign_server_is_reported(
    driver: str, engine: str, answer: bytes, serve: Callable[[bytes | None], int]
) -> None:
    port = serve(answer)
    message, seconds = refusal(driver, URLS[engine].format(port=port))
    assert seconds < SECONDS
    assert str(port) in message
    if answer is HTTP or (answer is TLS_ALERT and engine not in ("etcd", "redlock")):
        assert "TLS" in message or "does not speak" in message


@DRIVERS
@pytest.mark.engine("redis")
def test_a_little_time_is_kept_as_well(driver: str, serve: Callable[[bytes | None], int]) -> None:
    _, seconds = refusal(driver, URLS["redis"].format(port=serve(None)), timeout=1.0)
    assert 0.9 < seconds < 1.0 + SECONDS


# --- an attempt that was never made -----------------------------------------------------------------


@pytest.fixture
def withdrawals(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What clients have their keepers clean up: it is waited for, for up to a second."""
    asked: list[object] = []
    clean_up = releases.clean_up

    async def noting(client_state: ClientState, name: str, ttl: float, request: Any, wait: bool) -> None:
        asked.append(request)
        await clean_up(client_state, name, ttl, request, wait)

    monkeypatch.setattr(acquisition, "clean_up", noting)
    return asked


@contextlib.contextmanager
def wrong_password(engine: str) -> Iterator[str]:
    if engine == "redis":
        with Redis(password="right") as redis:
            yield f"redis://:wrong@{redis.address}/0"
    elif engine == "etcd":
        with Etcd(users={"root": "right"}) as etcd:
            yield f"etcd://root:wrong@{etcd.address}"
    else:
        with PostgreSQL(password="right") as postgresql:
            yield f"{engine}://postgres:wrong@{postgresql.address}/postgres"


@DRIVERS
@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(each, marks=pytest.mark.engine(each))
        for each in ("redis", "etcd", "postgresql", "postgresql+advisory")
    ],
)
def test_after_a_wrong_password_nothing_is_withdrawn(
    driver: str, engine: str, withdrawals: list[object]
) -> None:
    with wrong_password(engine) as url:
        message, seconds = refusal(driver, url)
    assert withdrawals == []
    assert seconds < SECONDS
    assert "wrong" not in message.replace("wrongpass", "")


@DRIVERS
@pytest.mark.engine("sqlite")
def test_without_a_folder_nothing_is_withdrawn(
    driver: str, tmp_path: Path, withdrawals: list[object]
) -> None:
    message, seconds = refusal(driver, f"sqlite:///{tmp_path}/missing/locks.db")
    assert withdrawals == []
    assert seconds < SECONDS
    assert "in a folder that does not exist" in message


@DRIVERS
@ENGINES
def test_at_a_foreign_port_nothing_is_withdrawn(
    driver: str, engine: str, withdrawals: list[object], serve: Callable[[bytes | None], int]
) -> None:
    refusal(driver, URLS[engine].format(port=serve(HTTP)))
    assert withdrawals == []


@ENGINES
def test_an_interrupt_while_connecting_leaves_nothing_to_withdraw(
    engine: str, withdrawals: list[object], serve: Callable[[bytes | None], int]
) -> None:
    """Ctrl-C ends the call at once, and the client as well."""
    with holdfast.connect(URLS[engine].format(port=serve(None))) as locks:
        lock = locks.lock("x")
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.2):
            lock.acquire()
        interrupted = time.monotonic()
    assert withdrawals == [] or engine == "redlock"  # it asks all nodes at once: some may have been sent it
    assert time.monotonic() - interrupted < SECONDS
