"""A TCP proxy that breaks connections on purpose, by methods called while it runs.

    with Proxy(server.host, server.port) as proxy:
        client = redis.Redis(port=proxy.port)
        lost = proxy.lose_reply(b"EVALSHA")     # the server executes it, and the client gets no reply
        …
        proxy.hold()                            # no byte moves, no connection is closed
        proxy.pass_on()                         # everything passes again

The effect of a method starts before the method returns, adds to earlier ones, and lasts until ``pass_on``.
One thread moves all bytes.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, Self

from .links import Direction, Ending, Link, Stream, Trap, close_socket
from .servers.ports import HOST, free_port

__all__ = ["Direction", "Ending", "Proxy"]

CHUNK_BYTES: Final = 1 << 16
BIND_ATTEMPTS: Final = 10
CLOSE_SECONDS: Final = 5.0

NewConnections = Literal["pass", "cut", "refuse"]


@dataclass(slots=True)
class _Behaviour:
    """The current treatment of bytes and of new connections."""

    delay: dict[Direction, float] = field(default_factory=lambda: {"to_server": 0.0, "to_client": 0.0})
    held: set[Direction] = field(default_factory=set)
    dropped: set[Direction] = field(default_factory=set)
    duplicate: Literal["no", "same", "apart"] = "no"
    new: NewConnections = "pass"
    cut_new_by_reset: bool = True


class Proxy:
    """Listens on a free loopback port and forwards to one server."""

    host = HOST

    def __init__(self, server_host: str, server_port: int) -> None:
        self.port = 0
        self.connections = 0
        """The number of connections accepted so far."""
        self.bytes_to_server = 0
        """The number of bytes delivered so far."""
        self.bytes_to_client = 0
        self._server = (server_host, server_port)
        self._behaviour = _Behaviour()
        self._traps: list[Trap] = []
        self._budgets: dict[Direction, tuple[int, Ending]] = {}
        self._links: set[Link] = set()
        self._listener: socket.socket | None = None
        self._orders: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def open_connections(self) -> int:
        """The number of open client connections."""
        return sum(1 for link in list(self._links) if not link.draining)

    # --- start and end

    def start(self) -> Self:
        self._selector = selectors.DefaultSelector()
        self._listen()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._work, name="holdfast-lab-proxy", daemon=True)
        self._thread.start()
        return self

    def close(self) -> None:
        """Cut everything and stop. May be called more than once; in a forked child it does nothing."""
        thread, self._thread = self._thread, None
        if thread is None or os.getpid() != self._owner:
            return
        self._order(self._end_of_work)
        thread.join(CLOSE_SECONDS)
        self._selector.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        host, port = self._server
        return f"<Proxy {self.address} to {host}:{port}, {self.open_connections} open>"

    # --- faults

    def pass_on(self) -> None:
        """Forward everything again, also held bytes. A stream with dropped bytes is reset."""

        def do() -> None:
            self._traps.clear()
            self._budgets.clear()
            self._behave(_Behaviour())
            for link in list(self._links):
                link.reply_trap = None
                if link.has_hole:
                    self._end(link, "reset")

        self._ask(do)

    def delay(self, *, to_server: float = 0.0, to_client: float = 0.0) -> None:
        """Deliver every byte this many seconds late."""
        self._change(delay={"to_server": to_server, "to_client": to_client})

    def hold(self, direction: Direction | None = None) -> None:
        """Hold one direction or both: connections stay open, and no byte is delivered before ``pass_on``."""
        self._change(held={direction} if direction else {"to_server", "to_client"})

    def drop(self, direction: Direction) -> None:
        """Make connections half-open: drop all bytes of this direction, and its end."""
        self._change(dropped={direction})

    def duplicate(self, *, apart: bool = False) -> None:
        """Send what clients send to the server twice.

        On the same connection, so that clients get two replies; or ``apart``, on a second connection whose
        replies are discarded. Only connections made from now on have a second one.
        """
        self._change(duplicate="apart" if apart else "same")

    def refuse(self) -> None:
        """Stop listening, so that new connections are refused. Open connections stay."""
        self._change(new="refuse")

    def cut_new(self, *, reset: bool = True) -> None:
        """Accept new connections and end them at once, by RST or by FIN."""
        self._change(new="cut", cut_new_by_reset=reset)

    def cut(self, *, reset: bool = True) -> int:
        """End all open connections, by RST or by FIN. Returns their number."""

        def do() -> int:
            links = list(self._links)
            for link in links:
                self._end(link, "reset" if reset else "close")
            return len(links)

        ended: int = self._ask(do)
        return ended

    def cut_after(self, count: int, direction: Direction, *, reset: bool = False) -> None:
        """Deliver this many more bytes in this direction, then end the connection of the last one. Once.

        After an RST the client may not be able to read the last bytes.
        """
        budget: tuple[int, Ending] = (count, "reset" if reset else "close")
        self._ask(lambda: self._budgets.__setitem__(direction, budget))

    def lose_request(self, matching: bytes = b"", ending: Ending = "reset") -> threading.Event:
        """Drop the next request that contains these bytes, and end its connection. Once.

        The server did not execute it, which the client cannot know. The event is set when that has happened.
        """
        return self._set_trap(Trap("request", matching, ending))

    def lose_reply(self, matching: bytes = b"", ending: Ending = "reset") -> threading.Event:
        """Deliver the next request that contains these bytes. When the server replies, end the client's
        connection without a byte of the reply. Once.

        The server executed it, which the client cannot know. The event is set when that has happened. A
        request is what arrives in one piece, the reply is the first bytes after it: exact for a client that
        sends one request at a time.
        """
        return self._set_trap(Trap("reply", matching, ending))

    # --- orders to the thread

    def _set_trap(self, trap: Trap) -> threading.Event:
        self._ask(lambda: self._traps.append(trap))
        return trap.sprung

    def _change(self, **what: Any) -> None:
        def do() -> None:
            for name, value in what.items():
                setattr(self._behaviour, name, value)
            self._behave(self._behaviour)

        self._ask(do)

    def _ask(self, do: Callable[[], Any]) -> Any:
        if self._thread is None:
            raise RuntimeError("the proxy is not running")
        return self._order(do).result(CLOSE_SECONDS)

    def _order(self, do: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._orders.append((future, do))
        os.write(self._wake_in, b"x")
        return future

    # --- the thread

    def _work(self) -> None:
        while self._selector.get_map():
            for key, _ in self._selector.select(self._patience()):
                if key.fd == self._wake_out:
                    self._apply_orders()
                elif key.data is None:
                    self._accept()
                elif key.data in self._links:
                    self._guarded(key.data, self._read, key.data, key.fileobj)
            now = time.monotonic()
            for link in list(self._links):
                self._guarded(link, self._move, link, now)

    def _patience(self) -> float | None:
        """Until the first chunk is due."""
        times = [
            stream.next_time
            for link in self._links
            for stream in self._moving_streams(link)
            if stream.next_time is not None
        ]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _apply_orders(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_out, 4096)
        while self._orders:
            future, do = self._orders.popleft()
            try:
                future.set_result(do())
            except BaseException as error:  # noqa: BLE001 - it is raised in the calling thread
                future.set_exception(error)

    def _end_of_work(self) -> None:
        for link in list(self._links):
            self._end(link, "reset")
        self._stop_listening()
        self._selector.unregister(self._wake_out)

    def _behave(self, behaviour: _Behaviour) -> None:
        self._behaviour = behaviour
        if behaviour.new == "refuse":
            self._stop_listening()
        elif self._listener is None:
            self._listen()
        for link in list(self._links):
            if link.server is None and "to_server" not in behaviour.held:
                self._connect(link)

    # --- new connections

    def _listen(self) -> None:
        for attempt in range(BIND_ATTEMPTS):
            port = self.port or free_port()
            try:
                self._listener = socket.create_server((HOST, port), backlog=1024)
            except OSError:
                if self.port or attempt == BIND_ATTEMPTS - 1:
                    raise
                continue  # another process took the port
            break
        self.port = port
        if self._listener is not None:
            self._listener.setblocking(False)
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        if self._listener is None:
            return
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            client, _ = self._listener.accept()
            self.connections += 1
            if self._behaviour.new == "cut":
                close_socket(client, self._behaviour.cut_new_by_reset)
                return
            _make_quick(client)
            link = Link(client)
            self._links.add(link)
            if "to_server" not in self._behaviour.held:
                self._connect(link)
            self._watch(link)

    def _connect(self, link: Link) -> None:
        apart = self._behaviour.duplicate == "apart"
        link.connected(self._open_server(), self._open_server() if apart else None)
        self._watch(link)

    def _open_server(self) -> socket.socket:
        end = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        _make_quick(end)
        end.connect_ex(self._server)  # a refused connection fails at the first read or write
        return end

    # --- bytes

    def _read(self, link: Link, end: socket.socket) -> None:
        if end.fileno() < 0:
            return  # closed since
        try:
            data = end.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        if end is link.shadow:
            if not data:
                self._forget(end)
                link.shadow = None
            return
        if link.draining:
            if not data:
                self._end(link, "close")
            return
        self._received(link, "to_server" if end is link.client else "to_client", data)

    def _received(self, link: Link, direction: Direction, data: bytes) -> None:
        stream = link.streams[direction]
        stream.exhausted = stream.exhausted or not data
        if direction in self._behaviour.dropped:
            stream.has_hole = True
            return
        if self._is_trapped(link, direction, data):
            return
        data = self._within_budget(link, direction, data)
        not_before = time.monotonic() + self._behaviour.delay[direction]
        if not data:
            stream.ended = True
        else:
            stream.add(data, not_before)
        if direction == "to_server":
            self._repeat(link, data, not_before)

    def _repeat(self, link: Link, data: bytes, not_before: float) -> None:
        if not data:
            link.to_shadow.ended = True
        elif link.shadow is not None:
            link.to_shadow.add(data, not_before)
        elif self._behaviour.duplicate == "same":
            link.streams["to_server"].add(data, not_before)

    def _is_trapped(self, link: Link, direction: Direction, data: bytes) -> bool:
        """Whether a trap drops these bytes."""
        if direction == "to_client":
            trap, link.reply_trap = link.reply_trap, None
            if trap is not None:
                self._spring(link, trap)
            return trap is not None
        for trap in self._traps:
            if data and trap.matching in data:
                self._traps.remove(trap)
                if trap.what == "reply":
                    link.reply_trap = trap
                    return False
                self._spring(link, trap)
                return True
        return False

    def _spring(self, link: Link, trap: Trap) -> None:
        trap.sprung.set()  # before the client can see it
        if trap.ending == "silence" or trap.what == "request":
            self._end(link, trap.ending)
        else:
            self._hang_up(link, trap.ending)

    def _within_budget(self, link: Link, direction: Direction, data: bytes) -> bytes:
        if direction not in self._budgets or not data:
            return data
        left, ending = self._budgets.pop(direction)
        if len(data) < left:
            self._budgets[direction] = (left - len(data), ending)
            return data
        link.ending = ending
        link.streams[direction].exhausted = link.streams[direction].ended = True
        return data[:left]

    def _moving_streams(self, link: Link) -> list[Stream]:
        if link.muted:
            return []
        held = self._behaviour.held | ({"to_client"} if link.draining else set())
        moving = [stream for direction, stream in link.streams.items() if direction not in held]
        return moving + ([link.to_shadow] if link.shadow is not None else [])

    def _move(self, link: Link, now: float) -> None:
        """Deliver the bytes that are due."""
        for stream in self._moving_streams(link):
            sent = stream.flush(now)
            if stream is link.streams["to_server"]:
                self.bytes_to_server += sent
            elif stream is link.streams["to_client"]:
                self.bytes_to_client += sent
        if link.ending is not None and any(stream.done for stream in link.streams.values()):
            self._end(link, link.ending)
        elif link.done:
            self._end(link, "close")
        else:
            self._watch(link)

    # --- ends

    def _guarded(self, link: Link, act: Callable[..., None], *arguments: Any) -> None:
        """End the other side of a connection whose one side broke."""
        try:
            act(*arguments)
        except OSError:
            self._end(link, "reset")

    def _end(self, link: Link, ending: Ending) -> None:
        if ending == "silence":
            link.muted = True
            return
        self._links.discard(link)
        for end in link.sockets:
            self._forget(end, reset=ending == "reset")

    def _hang_up(self, link: Link, ending: Ending) -> None:
        """End the client's side. The server's side is closed by FIN, so that the server executes all
        requests."""
        self._forget(link.client, reset=ending == "reset")
        link.draining = True
        link.streams["to_server"].ended = True

    def _forget(self, end: socket.socket, reset: bool = False) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(end)
        close_socket(end, reset)

    def _watch(self, link: Link) -> None:
        """Register an end for the events that matter now: readable, or writable."""
        to_server, to_client = link.streams["to_server"], link.streams["to_client"]
        if not link.draining:
            reads = not to_server.full and not to_server.exhausted
            self._register(link, link.client, reads, to_client.blocked)
        if link.server is not None:
            reads = not to_client.full and not to_client.exhausted
            self._register(link, link.server, reads, to_server.blocked)
        if link.shadow is not None:
            self._register(link, link.shadow, True, link.to_shadow.blocked)

    def _register(self, link: Link, end: socket.socket, reads: bool, writes: bool) -> None:
        events = (selectors.EVENT_READ if reads else 0) | (selectors.EVENT_WRITE if writes else 0)
        known = self._selector.get_map().get(end)
        if known is None and events:
            self._selector.register(end, events, link)
        elif known is not None and not events:
            self._selector.unregister(end)
        elif known is not None and known.events != events:
            self._selector.modify(end, events, link)


def _make_quick(end: socket.socket) -> None:
    end.setblocking(False)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
