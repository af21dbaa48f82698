"""The main thread never enters grpc: an interrupt that strikes there would leave a lock of grpc's taken."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from engines.etcd.conftest import Connect
from holdfast import EngineUnavailable
from holdfast.engines.etcd import aside as module
from holdfast.engines.etcd.aside import Aside
from holdfast.lab.proxy import Proxy
from support import interrupted_after

in_the_main_thread = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread"
)
pytestmark = in_the_main_thread


def in_another_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


def test_the_main_thread_has_it_done_by_another_and_others_do_it_themselves() -> None:
    aside = Aside()
    helper = aside(threading.get_ident)
    assert helper != threading.get_ident()
    assert aside(threading.get_ident) == helper
    seen: list[int] = []
    in_another_thread(lambda: seen.extend((aside(threading.get_ident), threading.get_ident())))
    assert seen[0] == seen[1]


def test_what_is_raised_there_is_raised_here() -> None:
    aside = Aside()
    with pytest.raises(ZeroDivisionError):
        aside(divmod, 1, 0)
    assert aside(divmod, 7, 2) == (3, 1)


def test_an_interrupt_ends_the_waiting_and_not_the_work_and_nobody_waits_behind_it() -> None:
    aside = Aside()
    go_on, done = threading.Event(), threading.Event()

    def work() -> None:
        go_on.wait(30)
        done.set()

    with pytest.raises(KeyboardInterrupt), interrupted_after(0.02):
        aside(work)
    assert aside(len, "abc") == 3
    assert not done.is_set()
    go_on.set()
    assert done.wait(30)


def test_one_that_comes_in_between_waits_for_nobody() -> None:
    """A signal handler runs while the main thread waits, and asks for something itself."""
    aside = Aside()
    go_on = threading.Event()
    told: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        told.append(aside(len, "abc"))
        go_on.set()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert aside(go_on.wait, 30)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert told == [3]
    assert aside(len, "ab") == 2


def test_when_no_thread_can_be_begun_any_more_it_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(module, "start_new_thread", refuse)
    assert Aside()(threading.get_ident) == threading.get_ident()


class Visits:
    """Where in grpc this thread has been."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_globals.get("__name__", "")
        by = frame.f_back
        if by is not None and by.f_code.co_name == "__del__":
            return  # of a channel that was closed: nobody needs its locks any more
        if event == "call" and name.startswith("grpc") and frame.f_code.co_name != "__del__":
            self.seen.add(f"{name}.{frame.f_code.co_qualname}")

    @contextmanager
    def watched(self) -> Iterator[None]:
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)


def test_grpc_is_never_entered_by_the_main_thread(connect: Connect, proxy: Proxy) -> None:
    visits = Visits()
    with visits.watched(), connect(f"etcd://{proxy.address}", io_timeout=1) as client:
        with client.lock("x", ttl=5) as lease:
            assert client.lock("x").acquire(timeout=0.01) is None
            assert client.inspect("x").token == lease.token
            assert client.list()
        proxy.hold()
        with pytest.raises(EngineUnavailable):
            client.lock("y").acquire()
        proxy.pass_on()
    assert not visits.seen
