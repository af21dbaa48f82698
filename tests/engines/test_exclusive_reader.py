"""One waiting thread reads itself: interrupted when it sleeps, left alone when it is about to look anyway."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.runtime.exclusive_reader import PollExclusiveReader

LONG_SECONDS = 20.0


class Pipe(PollExclusiveReader):
    """Reads a pipe; ``then`` handles each byte."""

    def __init__(self, then: Callable[[], bool]) -> None:
        super().__init__()
        self.then = then
        self.releases: list[int] = []
        self.reads, self.writes = os.pipe()
        self._wait_for(self.reads)

    def try_acquire(self) -> bool:
        return self._claim()

    def _receive(self, fd: int) -> bool:
        assert fd == self.reads
        os.read(fd, 1)
        return self.then()

    def _released(self) -> None:
        self.releases.append(threading.get_ident())


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe(lambda: True)
    yield pipe
    pipe.close()
    os.close(pipe.reads)
    os.close(pipe.writes)


def test_input_and_an_interrupt_are_distinguished(pipe: Pipe) -> None:
    assert pipe.try_acquire()
    os.write(pipe.writes, b"!")
    assert pipe.read(LONG_SECONDS)
    pipe.interrupt()
    assert not pipe.read(LONG_SECONDS)
    pipe.release()


def test_one_at_a_time(pipe: Pipe) -> None:
    assert pipe.try_acquire()
    answers: list[bool] = []

    def try_it() -> None:
        answers.append(pipe.try_acquire())
        pipe.release()

    other = threading.Thread(target=try_it)
    other.start()
    other.join()
    assert answers == [False]
    assert pipe.releases == [], "a thread that does not read has nothing to release"
    pipe.release()
    assert len(pipe.releases) == 1
    assert pipe.try_acquire()
    pipe.release()


def test_a_reader_that_is_about_to_look_is_not_interrupted(pipe: Pipe) -> None:
    def interrupt() -> bool:
        pipe.interrupt()
        return False

    assert pipe.try_acquire()
    pipe.then = interrupt
    os.write(pipe.writes, b"!")
    assert not pipe.read(LONG_SECONDS)
    assert not pipe._poller.poll(0), "the self-pipe was not written to"
    pipe.release()


def test_an_interrupt_leaves_the_self_pipe_as_it_was(pipe: Pipe) -> None:
    def interrupt() -> bool:
        raise KeyboardInterrupt

    assert pipe.try_acquire()
    pipe.then = interrupt
    os.write(pipe.writes, b"!")
    with pytest.raises(KeyboardInterrupt):
        pipe.read(LONG_SECONDS)
    pipe.interrupt()
    assert pipe._poller.poll(0), "otherwise no thread could wake this one any more"
    pipe.release()
