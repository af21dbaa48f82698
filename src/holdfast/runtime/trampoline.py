"""Running the coroutines of an engine: what a coroutine awaits is performed, and the result is sent to it.

Threads and loops share the coroutines. All that differs between the two is here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["run", "run_in_loop"]

T = TypeVar("T")


def run(script: Coroutine[Any, Any, T], perform: Callable[[Any], Any]) -> T:
    """Run it in this thread. What ``perform`` raises is raised in the coroutine, which decides what
    follows."""
    send, throw = script.send, script.throw
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
            except BaseException as failure:  # noqa: BLE001 - the coroutine decides what follows
                trouble = failure
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the value a coroutine returns is its T
    finally:
        error = trouble = None  # Their tracebacks refer to this frame: a cycle would keep its objects alive.
        script.close()


async def run_in_loop(script: Coroutine[Any, Any, T], perform: Callable[[Any], Awaitable[Any]]) -> T:
    """Run it in an event loop."""
    send, throw = script.send, script.throw
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
            except BaseException as failure:  # noqa: BLE001 - the coroutine decides what follows
                trouble = failure
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the value a coroutine returns is its T
    finally:
        error = trouble = None
        script.close()
