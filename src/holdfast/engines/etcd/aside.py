"""Doing things where no interrupt comes.

Python raises KeyboardInterrupt, and whatever else a signal handler raises, in the main thread alone, between
any two steps of it. grpc is not made for that: struck between taking a lock of its own and knowing that it
has it, it leaves the lock taken, and the next call waits for ever. So what touches grpc is never done by the
main thread: another does it, and the main thread waits for that. An interrupt ends the waiting, not the work.

There is one such thread for a process, begun when it is first needed; other threads need none.
"""

from __future__ import annotations

import contextlib
import os
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from threading import main_thread
from typing import Any, TypeVar

__all__ = ["aside"]

T = TypeVar("T")


def _nothing() -> None:
    """Before the first errand."""


class Helper:
    """A thread that does one errand after the other, for one who waits for each."""

    __slots__ = ("_act", "_begin", "_end", "_error", "_leaves", "_result", "_what", "busy")

    def __init__(self) -> None:
        self._begin = allocate_lock()
        """Free when there is something to do."""
        self._end = allocate_lock()
        """Free when it is done."""
        self._begin.acquire()
        self._end.acquire()
        self._act: Callable[..., Any] = _nothing
        self._what: tuple[Any, ...] = ()
        self._result: Any = None
        self._error: BaseException | None = None
        self._leaves = False
        self.busy = False

    def serve(self) -> None:
        begins, ended = self._begin.acquire, self._end.release
        while begins() and not self._leaves:
            try:
                self._result = self._act(*self._what)
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                self._error = error
            ended()

    def do(self, act: Callable[..., Any], what: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
        """What came of it. Whatever this raises came to the one who waits, and not to the helper."""
        self.busy = True
        self._act, self._what = act, what
        self._begin.release()
        self._end.acquire()
        outcome = self._result, self._error
        self._act, self._what, self._result, self._error = _nothing, (), None, None
        self.busy = False
        return outcome

    def leave(self) -> None:
        """It goes when it is done with what it does."""
        self._leaves = True
        with contextlib.suppress(RuntimeError):  # then it is about to begin, and sees that it shall not
            self._begin.release()


class Aside:
    """The helper of the main thread."""

    __slots__ = ("_helper",)

    def __init__(self) -> None:
        self._helper: Helper | None = None

    def __call__(self, act: Callable[..., T], *what: Any) -> T:
        """``act(*what)``, done by another thread if this is the main thread."""
        if get_ident() != main_thread().ident:
            return act(*what)
        helper = self._helper
        if helper is None or helper.busy:  # busy: a signal handler, or a finalizer, came in between
            helper = self._begin()
            if helper is None:
                return act(*what)
        try:
            result, error = helper.do(act, what)
        except BaseException:
            # Whatever it does now, nobody shall wait behind it.
            self._helper = None
            helper.leave()
            raise
        if helper is not self._helper:
            helper.leave()  # the one who came in between has left another
        if error is None:
            return result  # type: ignore[no-any-return]  # as ``act`` returned it
        try:
            raise error
        finally:
            del error  # lest it and its own traceback keep each other alive

    def _begin(self) -> Helper | None:
        """Without the handshake of ``threading``: an interrupt in it would leave a thread that hangs."""
        helper = Helper()
        try:
            start_new_thread(helper.serve, ())
            self._helper = helper
        except RuntimeError:
            return None  # the interpreter is about to end, and begins nothing any more
        except BaseException:
            self._helper = None
            helper.leave()
            raise
        return helper

    def forked(self) -> None:
        self._helper = None


aside = Aside()
os.register_at_fork(after_in_child=aside.forked)
