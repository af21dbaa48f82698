"""Each fault of the proxy, shown on a small server that echoes lines."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from holdfast.lab.proxy import Proxy
from support import stays_true, wait_until


class Echo(socketserver.StreamRequestHandler):
    """Answers each line with itself, and remembers it."""

    server: EchoServer

    def handle(self) -> None:
        try:
            for line in self.rfile:
                self.server.lines.append(line)
                self.wfile.write(line)
        except ConnectionError:
            self.server.ends.append("reset")
        else:
            self.server.ends.append("closed")


class EchoServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.ends: list[str] = []
        super().__init__(("127.0.0.1", 0), Echo)


@pytest.fixture
def server() -> Iterator[EchoServer]:
    with EchoServer() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def proxy(server: EchoServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.server_address[1]) as proxy:
        yield proxy


class Caller:
    """A client that asks line by line."""

    def __init__(self, proxy: Proxy, timeout: float = 5.0) -> None:
        self.socket = socket.create_connection((proxy.host, proxy.port), timeout)

    def send(self, line: bytes) -> None:
        self.socket.sendall(line + b"\n")

    def read(self) -> bytes:
        return self.socket.recv(100_000)

    def ask(self, line: bytes) -> bytes:
        self.send(line)
        return self.read().rstrip(b"\n")

    def hears_nothing(self) -> bool:
        self.socket.settimeout(0.1)
        try:
            self.socket.recv(1)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(5.0)
        return False


@pytest.fixture
def caller(proxy: Proxy) -> Iterator[Caller]:
    caller = Caller(proxy)
    yield caller
    caller.socket.close()


def test_it_passes_on_and_counts(proxy: Proxy, caller: Caller, server: EchoServer) -> None:
    assert caller.ask(b"hello") == b"hello"
    big = b"x" * 3_000_000
    caller.send(big)
    read = 0
    while read < len(big) + 1:
        read += len(caller.read())
    assert (proxy.connections, proxy.open_connections) == (1, 1)
    wait_until(lambda: proxy.bytes_to_server == proxy.bytes_to_client == len(big) + 1 + 6)
    caller.socket.shutdown(socket.SHUT_WR)
    assert caller.read() == b"", "the end of one side is passed on to the other, and back"
    wait_until(lambda: server.ends == ["closed"] and proxy.open_connections == 0)


def test_delay_of_each_direction(proxy: Proxy, caller: Caller, server: EchoServer) -> None:
    proxy.delay(to_server=0.2, to_client=0.1)
    started = time.monotonic()
    caller.send(b"late")
    wait_until(lambda: server.lines)
    assert time.monotonic() - started >= 0.2
    assert caller.read() == b"late\n"
    assert time.monotonic() - started >= 0.3
    proxy.pass_on()
    assert caller.ask(b"soon") == b"soon"


def test_held_bytes_are_delivered_in_the_end(proxy: Proxy, caller: Caller, server: EchoServer) -> None:
    proxy.hold()
    newcomer = Caller(proxy)
    for each in (caller, newcomer):
        each.send(b"held")
        assert each.hears_nothing()
    assert server.lines == []
    proxy.pass_on()
    assert [each.read() for each in (caller, newcomer)] == [b"held\n", b"held\n"]
    newcomer.socket.close()


def test_one_direction_can_be_held(proxy: Proxy, caller: Caller, server: EchoServer) -> None:
    proxy.hold("to_client")
    caller.send(b"x")
    wait_until(lambda: server.lines == [b"x\n"])
    assert caller.hears_nothing()
    caller.socket.close()
    wait_until(lambda: server.ends == ["closed"])


def test_while_it_is_held_the_server_does_not_see_a_client_go(
    proxy: Proxy, caller: Caller, server: EchoServer
) -> None:
    assert caller.ask(b"x") == b"x"
    proxy.hold()
    caller.socket.close()
    stays_true(lambda: server.ends == [], 0.1)
    proxy.pass_on()
    wait_until(lambda: server.ends == ["closed"])


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_half_open(proxy: Proxy, caller: Caller, server: EchoServer, direction: str) -> None:
    assert caller.ask(b"before") == b"before"
    proxy.drop("to_server" if direction == "to_server" else "to_client")
    caller.send(b"x")
    if direction == "to_client":
        wait_until(lambda: b"x\n" in server.lines)
    assert caller.hears_nothing()
    assert (b"x\n" in server.lines) == (direction == "to_client")
    proxy.pass_on()
    with pytest.raises(ConnectionResetError):
        caller.read()
    wait_until(lambda: server.ends)


def test_the_end_of_a_dropped_stream_is_dropped_too(proxy: Proxy, caller: Caller, server: EchoServer) -> None:
    assert caller.ask(b"before") == b"before"
    proxy.drop("to_server")
    caller.socket.close()
    stays_true(lambda: server.ends == [], 0.1)


@pytest.mark.parametrize("reset", [True, False])
def test_cutting_what_is_open(proxy: Proxy, caller: Caller, server: EchoServer, reset: bool) -> None:
    assert caller.ask(b"x") == b"x"
    assert proxy.cut(reset=reset) == 1
    if reset:
        with pytest.raises(ConnectionResetError):
            caller.read()
    else:
        assert caller.read() == b""
    wait_until(lambda: server.ends == ["reset" if reset else "closed"])
    again = Caller(proxy)
    assert again.ask(b"again") == b"again"
    again.socket.close()


def test_cutting_what_is_new(proxy: Proxy, caller: Caller, server: EchoServer) -> None:
    proxy.cut_new(reset=False)
    newcomer = Caller(proxy)
    assert newcomer.read() == b""
    newcomer.socket.close()
    assert caller.ask(b"x") == b"x"
    proxy.pass_on()


def test_refusing(proxy: Proxy, caller: Caller) -> None:
    assert caller.ask(b"x") == b"x"
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        Caller(proxy)
    assert caller.ask(b"x") == b"x"
    proxy.pass_on()
    newcomer = Caller(proxy)
    assert newcomer.ask(b"y") == b"y"
    newcomer.socket.close()


def test_a_server_that_refuses(proxy: Proxy, server: EchoServer) -> None:
    server.shutdown()
    server.server_close()
    with (
        pytest.raises(ConnectionResetError),
        socket.create_connection((proxy.host, proxy.port), 5) as caller,
    ):
        caller.recv(1)


def test_duplicates_on_the_same_connection(proxy: Proxy, caller: Caller, server: EchoServer) -> None:
    proxy.duplicate()
    caller.send(b"x")
    wait_until(lambda: server.lines == [b"x\n", b"x\n"])
    wait_until(lambda: proxy.bytes_to_client == 4)


def test_duplicates_apart(proxy: Proxy, caller: Caller, server: EchoServer) -> None:
    proxy.duplicate(apart=True)
    newcomer = Caller(proxy)
    assert newcomer.ask(b"x") == b"x"
    assert newcomer.ask(b"y") == b"y", "answered once"
    wait_until(lambda: sorted(server.lines) == [b"x\n", b"x\n", b"y\n", b"y\n"])
    newcomer.socket.close()
    wait_until(lambda: server.ends == ["closed", "closed"])
    assert caller.ask(b"z") == b"z"
    assert server.lines.count(b"z\n") == 1, "one that was there before has no shadow"


def test_cut_after_so_many_bytes(proxy: Proxy, caller: Caller, server: EchoServer) -> None:
    proxy.cut_after(5, "to_client")
    assert caller.ask(b"ab") == b"ab"
    caller.send(b"cdefg")
    assert [caller.read(), caller.read()] == [b"cd", b""]
    assert server.lines == [b"ab\n", b"cdefg\n"]
    newcomer = Caller(proxy)
    proxy.cut_after(3, "to_server")
    newcomer.send(b"12345")
    assert newcomer.read() == b""
    wait_until(lambda: server.lines[-1] == b"123")
    newcomer.socket.close()


def test_a_lost_request_never_happened(proxy: Proxy, caller: Caller, server: EchoServer) -> None:
    lost = proxy.lose_request(b"this")
    assert caller.ask(b"that") == b"that"
    assert not lost.is_set()
    with pytest.raises(ConnectionResetError):
        caller.ask(b"this one")
    assert lost.is_set()
    assert server.lines == [b"that\n"]


@pytest.mark.parametrize("ending", ["reset", "close"])
def test_a_lost_reply_happened(proxy: Proxy, caller: Caller, server: EchoServer, ending: str) -> None:
    lost = proxy.lose_reply(b"this", "reset" if ending == "reset" else "close")
    assert caller.ask(b"that") == b"that"
    caller.send(b"this one")
    if ending == "reset":
        with pytest.raises(ConnectionResetError):
            caller.read()
    else:
        assert caller.read() == b""
    assert lost.is_set()
    assert server.lines == [b"that\n", b"this one\n"]
    wait_until(lambda: server.ends == ["closed"])
    newcomer = Caller(proxy)
    assert newcomer.ask(b"this again") == b"this again", "once"
    newcomer.socket.close()


def test_a_reply_lost_in_silence(proxy: Proxy, caller: Caller, server: EchoServer) -> None:
    lost = proxy.lose_reply(ending="silence")
    caller.send(b"x")
    assert lost.wait(5)
    assert caller.hears_nothing()
    proxy.pass_on()
    caller.send(b"y")
    assert caller.hears_nothing(), "that connection is dead and does not know"
    assert proxy.cut() == 1


def test_faults_add_up_and_pass_on_undoes_them(proxy: Proxy, caller: Caller) -> None:
    proxy.lose_reply()
    proxy.cut_after(0, "to_client")
    proxy.delay(to_server=60)
    proxy.refuse()
    proxy.pass_on()
    assert caller.ask(b"x") == b"x"


def test_nothing_is_left_of_it(server: EchoServer) -> None:
    proxy = Proxy("127.0.0.1", server.server_address[1])
    with pytest.raises(RuntimeError, match="not running"):
        proxy.hold()
    with proxy:
        caller = Caller(proxy)
        assert caller.ask(b"x") == b"x"
    with pytest.raises(ConnectionResetError):
        caller.read()
    caller.socket.close()
    with pytest.raises(ConnectionRefusedError):
        Caller(proxy)
    assert not any("proxy" in thread.name for thread in threading.enumerate())
    proxy.close()
