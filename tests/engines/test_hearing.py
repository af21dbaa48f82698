"""One waiting thread hears for itself: rung when it sleeps, left alone when it is about to look anyway."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from holdfast.runtime.exclusive_reader import ExclusiveReader

LONG_SECONDS = 20.0


class Pipe(ExclusiveReader):
    """Hears a pipe; what comes there is dealt with by ``then``."""

    def __init__(self, then: Callable[[], bool]) -> None:
        super().__init__()
        self.then = then
        self.let_go: list[int] = []
        self.reads, self.writes = os.pipe()
        self._listen_to(self.reads)

    def take(self) -> bool:
        return self._is_mine()

    def _heard(self, fd: int) -> bool:
        assert fd == self.reads
        os.read(fd, 1)
        return self.then()

    def _let_go(self) -> None:
        self.let_go.append(threading.get_ident())


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe(lambda: True)
    yield pipe
    pipe.close()
    os.close(pipe.reads)
    os.close(pipe.writes)


def test_what_came_and_the_bell_are_told_apart(pipe: Pipe) -> None:
    assert pipe.take()
    os.write(pipe.writes, b"!")
    assert pipe.hear(LONG_SECONDS)
    pipe.ring()
    assert not pipe.hear(LONG_SECONDS)
    pipe.give_back()


def test_one_at_a_time(pipe: Pipe) -> None:
    assert pipe.take()
    answers: list[bool] = []

    def try_it() -> None:
        answers.append(pipe.take())
        pipe.give_back()

    other = threading.Thread(target=try_it)
    other.start()
    other.join()
    assert answers == [False]
    assert pipe.let_go == [], "who does not hear has nothing to give back"
    pipe.give_back()
    assert len(pipe.let_go) == 1
    assert pipe.take()
    pipe.give_back()


def test_who_is_about_to_look_is_not_rung(pipe: Pipe) -> None:
    def ring() -> bool:
        pipe.ring()
        return False

    assert pipe.take()
    pipe.then = ring
    os.write(pipe.writes, b"!")
    assert not pipe.hear(LONG_SECONDS)
    assert not pipe._poller.poll(0), "the bell was not rung"
    pipe.give_back()


def test_an_interrupt_leaves_the_bell_as_it_was(pipe: Pipe) -> None:
    def interrupt() -> bool:
        raise KeyboardInterrupt

    assert pipe.take()
    pipe.then = interrupt
    os.write(pipe.writes, b"!")
    with pytest.raises(KeyboardInterrupt):
        pipe.hear(LONG_SECONDS)
    pipe.ring()
    assert pipe._poller.poll(0), "or nobody could wake this thread any more"
    pipe.give_back()
