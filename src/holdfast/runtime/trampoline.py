"""Running the scripts of an engine: what a script awaits is done, and what came of it is told to the script.

Threads and loops share the scripts; here is all that differs between the two.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["run", "run_in_loop"]

T = TypeVar("T")


def run(script: Coroutine[Any, Any, T], perform: Callable[[Any], Any]) -> T:
    """In this thread. What ``perform`` raises is raised in the script, which decides what becomes of it."""
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
            except BaseException as failure:  # noqa: BLE001 - the script decides what becomes of it
                trouble = failure
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the value a script returns is its T
    finally:
        error = trouble = None  # they know this frame, and what it has would be kept by a circle
        script.close()


async def run_in_loop(script: Coroutine[Any, Any, T], perform: Callable[[Any], Awaitable[Any]]) -> T:
    """The same in an event loop."""
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
            except BaseException as failure:  # noqa: BLE001 - the script decides what becomes of it
                trouble = failure
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # the value a script returns is its T
    finally:
        error = trouble = None
        script.close()
