"""Races that the simulation found, told step by step: a script is handed its replies one by one."""

from __future__ import annotations

from typing import Any

from holdfast.core.arguments import Spec
from holdfast.core.ops import Apply, Listen, Nonce, Now, Op, Pause, Refused, Script, Unlisten
from holdfast.protocols import records
from holdfast.protocols.book import Book
from holdfast.rules.record import EMPTY
from holdfast.rules.requests import Busy, Snapshot

SPEC = Spec(
    name="x",
    kind="lock",
    mode="exclusive",
    ttl=10.0,
    timeout=None,
    fair=True,
    renew=True,
    max_hold=None,
    grace=0.0,
    if_lost="raise",
)


class Driven:
    """A script whose operations are answered by the test. The clock is the test's as well."""

    def __init__(self, script: Script[Any]) -> None:
        self.now = 100.0
        self._script = script
        self._nonces = 0
        self.result: Any = None
        self.op: Op | None = None
        self._go_on(None, None)

    def reply(self, value: Any = None) -> Op | None:
        return self._go_on(value, None)

    def fail(self, trouble: BaseException) -> Op | None:
        return self._go_on(None, trouble)

    def abandon(self) -> None:
        """The test has seen enough: let the script end, whatever it still wants to do."""
        try:
            while True:
                self._script.throw(SystemExit())
        except SystemExit:
            self.op = None

    def _go_on(self, value: Any, trouble: BaseException | None) -> Op | None:
        """Until the next operation that is not about the clock or a name."""
        while True:
            try:
                self.op = self._script.throw(trouble) if trouble is not None else self._script.send(value)
            except StopIteration as end:
                self.op, self.result = None, end.value
                return None
            trouble = None
            if isinstance(self.op, Now):
                value = self.now
            elif isinstance(self.op, Nonce):
                self._nonces += 1
                value = f"n{self._nonces}"
            elif isinstance(self.op, Unlisten):
                value = None
            else:
                return self.op


def a_book() -> Book:
    return Book("me", io_timeout=5.0, linger=5.0, ring=lambda bell: None)


def test_an_engine_that_refuses_to_listen_is_asked_again() -> None:
    """The refusal is between us and the engine: it never reaches the one who waits for the lock."""
    book = a_book()
    acquire = Driven(records.acquire(book, SPEC, "me", None))
    acquire.reply(Busy((), 0.0))
    assert isinstance(acquire.op, Listen)
    assert isinstance(acquire.fail(Refused("no")), Pause)
    assert isinstance(acquire.reply(), Apply)
    acquire.reply(Busy((), 0.0))
    assert isinstance(acquire.op, Listen)
    acquire.abandon()

    watch = Driven(records.subscribe(book, "x"))
    assert isinstance(watch.fail(Refused("no")), Pause)
    assert isinstance(watch.reply(), Listen)
    assert isinstance(watch.reply(), Apply)
    watch.reply(Snapshot(EMPTY, 0.0))
    assert watch.result == ("n1", Snapshot(EMPTY, 0.0))


def test_cleaning_up_does_not_depend_on_hearing_of_its_end() -> None:
    book = a_book()
    acquire = Driven(records.acquire(book, SPEC, "me", None))
    try:
        assert isinstance(acquire.fail(KeyboardInterrupt()), Listen)
        acquire.fail(Refused("no"))
    except KeyboardInterrupt:
        assert [job.name for job in book.jobs] == ["x"]
    else:
        raise AssertionError("the interrupt was swallowed")
