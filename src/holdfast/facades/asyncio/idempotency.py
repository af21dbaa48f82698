"""Operations that run once, for asyncio."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ...core import arguments
from ...drivers.asyncio import LossCancellation
from ...errors import InvalidArgument
from ...recipes import idempotency as recipe
from ...recipes.idempotency import Attempt, Operation, OperationOptions

if TYPE_CHECKING:
    from ...aio import AsyncClient, AsyncLease

__all__ = ["AsyncIdempotent", "Attempt"]

P = ParamSpec("P")
R = TypeVar("R")


class AsyncIdempotent:
    """An operation that runs once: as ``async with``, by ``run``, or as a decorator of async functions.

    The loss of the lease cancels the body."""

    __slots__ = ("_client", "_entered", "_options", "_wrap")

    def __init__(
        self, client: AsyncClient, wrap: Callable[..., AsyncLease], options: OperationOptions
    ) -> None:
        recipe.check_engine(client.guarantees)
        self._client = client
        self._wrap = functools.partial(wrap, client)
        self._options = options
        self._entered: list[_Body] = []
        """The blocks that have not ended."""

    def __repr__(self) -> str:
        return f"<holdfast.AsyncIdempotent {self._options!r}>"

    async def __aenter__(self) -> Attempt[AsyncLease]:
        body = await self._enter(self._options.operation())
        self._entered.append(body)
        return body.attempt

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        body = self._latest()
        self._entered.remove(body)
        left = await self._leave(body, error)
        if left is not None and left is not error:
            raise left

    async def run(self, function: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """``await function(*args, **kwargs)``, or what it returned the first time, as JSON or bytes."""
        body = await self._enter(self._options.operation_of(args, kwargs))
        attempt = body.attempt
        try:
            if not attempt.done:
                attempt.set_result(await function(*args, **kwargs))
        except BaseException as error:
            left = await self._leave(body, error)
            if left is error or left is None:
                raise
            raise left from None
        left = await self._leave(body, None)
        if left is not None:
            raise left
        return attempt.result  # type: ignore[no-any-return]  # what the function returned, as JSON has it

    def __call__(self, function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        """Decorate ``function``: each call of it is ``run``."""
        arguments.check_decorated(function, "async", "holdfast.connect()")

        @functools.wraps(function)
        async def once(*args: P.args, **kwargs: P.kwargs) -> R:
            return await self.run(function, *args, **kwargs)

        return once

    def _latest(self) -> _Body:
        """This task's latest block; else, as with exit stacks, the latest of any."""
        mine = _current_task()
        return next((each for each in self._entered[::-1] if each.task is mine), self._entered[-1])

    async def _enter(self, operation: Operation) -> _Body:
        driver, task = self._client._driver, _current_task()
        owner, watch = driver.owner_prefix + task.get_name(), self._client._watch_long_wait
        attempt = await driver.run(
            recipe.enter(driver.client_state, operation, self._wrap, weakref.ref(task), owner, watch)
        )
        body = _Body(task, attempt)
        if attempt.lease is not None:
            state = attempt.lease._state
            state.loss_callbacks.append(body.cancellation.cancel)
            if state.has_fired:
                driver.signal(state)
        return body

    async def _leave(self, body: _Body, error: BaseException | None) -> BaseException | None:
        """What remains of the error, once the cancellation that the loss has sent is taken back."""
        left = await body.cancellation.finish(error)
        driver = self._client._driver
        if left is None or not driver.closed:  # closing released it, and the body's own error comes first
            was_cancelled = error is not None and left is None
            await driver.run(recipe.leave(body.attempt, weakref.ref(body.task), left, was_cancelled))
        return left


class _Body:
    """The code inside ``async with``, or the function of ``run``."""

    __slots__ = ("attempt", "cancellation", "task")

    def __init__(self, task: asyncio.Task[Any], attempt: Attempt[AsyncLease]) -> None:
        self.task = task
        self.attempt = attempt
        self.cancellation = LossCancellation(task)


def _current_task() -> asyncio.Task[Any]:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    if task is None:
        raise InvalidArgument("operations of holdfast.aio are used inside a task of a running event loop")
    return task
