"""Which thread reads notifications: a waiter, or the listener thread. Nothing is left unread between them."""

from __future__ import annotations

import itertools
import select
import threading
from collections.abc import Callable
from typing import Any

import pytest

from engines.reading_threads import ReadingThread, is_polling
from engines.sqlite.stores import One
from holdfast.engines.sqlite import notifications
from holdfast.engines.sqlite.notifications import SocketReader
from holdfast.engines.sqlite.sockets import SendResult
from holdfast.rules.requests import Handoff, Wake
from support import stays_true, wait_until
from support.crowds import in_threads, join

pytestmark = pytest.mark.usefixtures("strangers")

LISTENER = "holdfast-listener"
AT_ONCE = 5
"""Messages that an inbox takes without being read, whatever the system allows."""


class Line:
    """A client that receives, and another that sends it messages."""

    def __init__(self, client: Callable[[], One]) -> None:
        self.one, self._sender = client(), client()
        self.one.hold("x")
        self._sender.hold("y")
        self.one.store.listen_in_thread()
        self._numbers = itertools.count(1)

    @property
    def notification_reader(self) -> SocketReader:
        reader = self.one.store.notification_reader
        assert isinstance(reader, SocketReader)
        return reader

    def send(self, handed: Handoff | None = None) -> str:
        registration = self._sender.store._session.registration
        assert registration is not None
        nonce = f"{self.one.id}-{next(self._numbers):x}"
        assert registration.wakeup_socket.send(Wake(self.one.id, nonce, handed)) is SendResult.DELIVERED
        return nonce

    def until_posted(self, *nonces: str) -> None:
        wait_until(lambda: set(nonces) <= set(self.one.posted), message="left unread")


@pytest.fixture
def line(client: Callable[[], One]) -> Line:
    return Line(client)


def test_a_waiter_reads_for_itself_and_otherwise_the_listener_thread_does(line: Line) -> None:
    for _ in range(20):
        with ReadingThread(line.notification_reader) as reading_thread:
            nonce = line.send()
            line.until_posted(nonce)
        assert line.one.read_by[nonce] == reading_thread.name
        nonce = line.send()
        line.until_posted(nonce)
        assert line.one.read_by[nonce] == LISTENER


def test_the_listener_thread_is_not_even_woken_by_what_another_reads(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    registration = line.one.store._session.registration
    assert registration is not None
    deliver, readers = registration.listener.deliver, list[str]()

    def noted() -> bool:
        readers.append(threading.current_thread().name)
        return deliver()

    monkeypatch.setattr(registration.listener, "deliver", noted)
    with ReadingThread(line.notification_reader) as reading_thread:
        for _ in range(20):
            wait_until(lambda: is_polling(reading_thread))
            line.until_posted(line.send())
        stays_true(lambda: set(readers) == {reading_thread.name}, 0.1)


def test_a_handoff_is_read_either_way(line: Line) -> None:
    with ReadingThread(line.notification_reader):
        nonce = line.send(Handoff(17, 0.25))
        line.until_posted(nonce)
    listened = line.send(Handoff(18, 1e-9))
    line.until_posted(listened)
    assert line.one.handed == {nonce: Handoff(17, 0.25), listened: Handoff(18, 1e-9)}


def test_one_at_a_time(line: Line) -> None:
    with ReadingThread(line.notification_reader) as reading_thread:
        assert not line.notification_reader.try_acquire()
        line.notification_reader.release()  # it is not ours
        nonce = line.send()
        line.until_posted(nonce)
        assert line.one.read_by[nonce] == reading_thread.name
    assert line.notification_reader.try_acquire()
    line.notification_reader.release()


def test_a_reader_that_does_not_wait_yet_delays_no_other(line: Line) -> None:
    assert line.notification_reader.try_acquire()
    line.until_posted(*[line.send() for _ in range(AT_ONCE)])
    line.notification_reader.release()


def test_an_interrupt_ends_the_read_and_leaves_nothing_unread(line: Line) -> None:
    """It is interrupted just as several came."""
    for _ in range(50):
        with ReadingThread(line.notification_reader):
            nonces = [line.send() for _ in range(AT_ONCE)]
            line.notification_reader.interrupt()
        line.until_posted(*nonces)


def test_nothing_is_left_unread_by_readers_that_come_and_go(line: Line) -> None:
    """Each leaves after its first notification, or after a moment, whatever came meanwhile."""
    ended = threading.Event()

    def wait_now_and_then() -> None:
        while not ended.is_set():
            if line.notification_reader.try_acquire():
                line.notification_reader.read(0.002)
                line.notification_reader.release()
            else:
                ended.wait(0.001)

    threads = in_threads(3, wait_now_and_then)
    try:
        for _ in range(200):
            line.until_posted(*[line.send() for _ in range(AT_ONCE)])
    finally:
        ended.set()
        join(threads)
    assert len(line.one.posted) == 200 * AT_ONCE, "and none was read twice"
    assert {LISTENER, *[thread.name for thread in threads]} >= set(line.one.read_by.values())


class Interrupted:
    """An epoll that is interrupted once it has an event: no other poller gets it."""

    def __init__(self, epoll: select.epoll) -> None:
        self._epoll = epoll
        self.times = 0

    def poll(self, seconds: float, most: int) -> Any:
        told = self._epoll.poll(seconds, most)
        if not self.times:
            self.times += 1
            raise KeyboardInterrupt
        return told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


@pytest.mark.parametrize("count", [1, AT_ONCE])
def test_an_interrupt_leaves_nothing_unread(line: Line, count: int) -> None:
    reader = line.notification_reader
    interrupts: list[BaseException] = []

    def wait() -> None:
        assert reader.try_acquire()
        try:
            reader.read(60.0)
        except KeyboardInterrupt as interrupt:
            interrupts.append(interrupt)
        finally:
            reader.release()

    for _ in range(10):
        epoll = reader._epoll
        reader._epoll = Interrupted(epoll)  # type: ignore[assignment]  # it does what an epoll does
        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: is_polling(waiting))  # noqa: B023 - asked before it changes
        line.until_posted(*[line.send() for _ in range(count)])
        while waiting.is_alive():  # the other thread may have got the rest, and have read it all
            line.until_posted(line.send())
            waiting.join(0.1)
        reader._epoll = epoll
    assert len(interrupts) == 10


def test_an_interrupt_while_one_is_delivered_leaves_the_others(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was just read is lost with its reader; later messages are read."""
    registration = line.one.store._session.registration
    assert registration is not None
    post, lost = registration.listener._post, list[str]()
    begins, goes_on = threading.Event(), threading.Event()

    def post_once_interrupted(nonce: str, handed: Handoff | None = None) -> None:
        if not lost and threading.current_thread().name == "waiting":
            lost.append(nonce)
            begins.set()
            goes_on.wait(10)
            raise KeyboardInterrupt
        post(nonce, handed)

    def wait() -> None:
        assert line.notification_reader.try_acquire()
        try:
            line.notification_reader.read(60.0)
        except KeyboardInterrupt:
            pass
        finally:
            line.notification_reader.release()

    monkeypatch.setattr(registration.listener, "_post", post_once_interrupted)
    waiting = threading.Thread(target=wait, name="waiting")
    waiting.start()
    wait_until(lambda: is_polling(waiting))
    first = line.send()
    assert begins.wait(10)
    others = [line.send() for _ in range(AT_ONCE)]
    goes_on.set()
    waiting.join(10)
    assert lost == [first]
    line.until_posted(*others)


def test_a_reader_is_interrupted_when_it_is_closed(line: Line) -> None:
    """It looks at what it waits for, and cannot read any more."""
    reader = line.notification_reader
    with ReadingThread(reader, seconds=0.1):
        line.one.store.close()
        assert reader.read(60.0)
    assert not reader.try_acquire()


class HoldsUp(dict[int, str]):
    """A caller that asks for the number of listeners is held up for as long as the test likes."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go_on = threading.Event(), threading.Event()

    def __len__(self) -> int:
        if threading.current_thread().name == LISTENER:
            self.reached.set()
            assert self.go_on.wait(10)
        return super().__len__()


def test_a_thread_that_is_paused_while_all_is_closed_ends_in_silence(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for it for ever."""
    monkeypatch.setattr(notifications, "STOP_SECONDS", 0.01)
    registration = line.one.store._session.registration
    assert registration is not None
    listener, failures = registration.listener, list[object]()
    thread = listener._thread
    assert thread is not None
    monkeypatch.setattr(threading, "excepthook", failures.append)
    clients = listener._clients = HoldsUp()
    line.send()
    assert clients.reached.wait(10)
    line.one.store.close()
    clients.go_on.set()
    thread.join(10)
    assert not thread.is_alive()
    assert not failures
