"""Doing things where no interrupt comes.

Python raises KeyboardInterrupt, and whatever else a signal handler raises, in the main thread alone, between
any two steps of it. grpc is not made for that: struck between taking a lock of its own and knowing that it
has it, it leaves the lock taken, and the next call waits for ever. So what touches grpc is never done by the
main thread: another does it, and the main thread waits for that. An interrupt ends the waiting, not the work.

There is one such thread for a process, begun when it is first needed; other threads need none.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from queue import SimpleQueue
from threading import main_thread
from typing import Any, TypeVar

__all__ = ["aside"]

T = TypeVar("T")


class Errand:
    """Something to be done, and what came of it."""

    __slots__ = ("_act", "_what", "done", "error", "result")

    def __init__(self, act: Callable[..., Any], what: tuple[Any, ...]) -> None:
        self._act = act
        self._what = what
        self.done = allocate_lock()
        """Free when it is done."""
        self.done.acquire()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self._act(*self._what)
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self.error = error
        self.done.release()


Helper = SimpleQueue[Errand | None]
"""A thread that does errands, as seen from outside: the queue that it reads. None: that was the last."""


def _serve(helper: Helper) -> None:
    while (errand := helper.get()) is not None:
        errand.run()
        del errand  # and all that hangs on it, while we wait for the next


class Aside:
    """The helper of the main thread."""

    __slots__ = ("_helper",)

    def __init__(self) -> None:
        self._helper: Helper | None = None

    def __call__(self, act: Callable[..., T], *what: Any) -> T:
        """``act(*what)``, done by another thread if this is the main thread."""
        if get_ident() != main_thread().ident:
            return act(*what)
        helper = self._helper or self._begin()
        if helper is None:
            return act(*what)
        errand = Errand(act, what)
        try:
            helper.put(errand)
            errand.done.acquire()
        except BaseException:
            self._leave(helper)
            raise
        try:
            if errand.error is not None:
                raise errand.error
            return errand.result  # type: ignore[no-any-return]  # as ``act`` returned it
        finally:
            del errand  # lest an error and its own traceback keep each other alive

    def _begin(self) -> Helper | None:
        """Without the handshake of ``threading``: an interrupt in it would leave a thread that hangs."""
        helper: Helper = SimpleQueue()
        try:
            start_new_thread(_serve, (helper,))
            self._helper = helper
        except RuntimeError:
            return None  # the interpreter is about to end, and begins nothing any more
        except BaseException:
            self._leave(helper)
            raise
        return helper

    def _leave(self, helper: Helper) -> None:
        """It goes when it is done with what it does. The next errand is another's: it shall not wait."""
        self._helper = None
        helper.put(None)

    def forked(self) -> None:
        self._helper = None


aside = Aside()
os.register_at_fork(after_in_child=aside.forked)
