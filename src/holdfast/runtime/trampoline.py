"""Runs coroutines whose awaits are requests: each request is performed, and its result is sent back in.

Threads and event loops share the coroutines; all that differs between the two is here. The drivers have loops
of their own: they take the shortest path for ``Apply`` and handle interrupts between two effects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["run", "run_in_loop"]

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T], perform: Callable[[Any], Any]) -> T:
    """In this thread. What ``perform`` raises is raised in the coroutine, which handles it."""
    send, throw = coroutine.send, coroutine.throw
    reply: Any = None
    trouble: BaseException | None = None
    error: BaseException | None = None
    try:
        while True:
            if trouble is None:
                op = send(reply)
            else:
                error, trouble = trouble, None
                op = throw(error)
            try:
                reply = perform(op)
            except BaseException as failure:  # noqa: BLE001 - the coroutine handles it
                trouble = failure
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the value a coroutine returns is its T
    finally:
        error = trouble = None  # they refer to this frame, which would make a reference cycle
        coroutine.close()


async def run_in_loop(coroutine: Coroutine[Any, Any, T], perform: Callable[[Any], Awaitable[Any]]) -> T:
    """The same in an event loop."""
    send, throw = coroutine.send, coroutine.throw
    reply: Any = None
    trouble: BaseException | None = None
    error: BaseException | None = None
    try:
        while True:
            if trouble is None:
                op = send(reply)
            else:
                error, trouble = trouble, None
                op = throw(error)
            try:
                reply = await perform(op)
            except BaseException as failure:  # noqa: BLE001 - the coroutine handles it
                trouble = failure
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the value a coroutine returns is its T
    finally:
        error = trouble = None
        coroutine.close()
