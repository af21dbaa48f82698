"""Waiting for the end of a thread (``thread_join``): closing must not stumble over one that just begins."""

from __future__ import annotations

import threading

from holdfast.runtime.thread_join import join_thread


def test_one_that_has_not_begun_is_not_waited_for() -> None:
    join_thread(threading.Thread(target=print), 10.0)
    join_thread(None, 10.0)


def test_nor_is_our_own() -> None:
    join_thread(threading.current_thread(), 10.0)


def test_one_that_runs_is() -> None:
    ended = threading.Event()
    thread = threading.Thread(target=lambda: ended.wait(10.0))
    thread.start()
    threading.Timer(0.05, ended.set).start()
    join_thread(thread, 10.0)
    assert ended.is_set()
    assert not thread.is_alive()
