"""Operations that run once, for threads."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from ...core import arguments
from ...recipes import idempotency as recipe
from ...recipes.idempotency import Attempt, Operation, OperationOptions

if TYPE_CHECKING:
    from ...client import Client, Lease

__all__ = ["Attempt", "Idempotent"]

P = ParamSpec("P")
R = TypeVar("R")


class Idempotent:
    """An operation that runs once: as ``with``, by ``run``, or as a decorator of plain functions."""

    __slots__ = ("_client", "_entered", "_options", "_wrap")

    def __init__(self, client: Client, wrap: Callable[..., Lease], options: OperationOptions) -> None:
        recipe.check_engine(client.guarantees)
        self._client = client
        self._wrap = functools.partial(wrap, client)
        self._options = options
        self._entered: list[tuple[int, Attempt[Lease]]] = []
        """The blocks that have not ended, each with its thread."""

    def __repr__(self) -> str:
        return f"<holdfast.Idempotent {self._options!r}>"

    def __enter__(self) -> Attempt[Lease]:
        attempt = self._enter(self._options.operation())
        try:
            self._entered.append((threading.get_ident(), attempt))
        except BaseException:
            self._entered[:] = [each for each in self._entered if each[1] is not attempt]
            self._give_up(attempt)
            raise
        return attempt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        entry = self._latest()
        try:
            self._leave(entry[1], error)
        except BaseException:
            self._give_up(entry[1])
            raise
        finally:
            self._entered.remove(entry)

    def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """``function(*args, **kwargs)``, or what it returned the first time, as JSON or bytes."""
        attempt = self._enter(self._options.operation_of(args, kwargs))
        try:
            try:
                if not attempt.done:
                    attempt.set_result(function(*args, **kwargs))
            except BaseException as error:
                self._leave(attempt, error)
                raise
            self._leave(attempt, None)
        except BaseException:
            self._give_up(attempt)
            raise
        return attempt.result  # type: ignore[no-any-return]  # what the function returned, as JSON has it

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate ``function``: each call of it is ``run``."""
        arguments.check_decorated(function, "plain", "holdfast.aio")

        @functools.wraps(function)
        def once(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.run(function, *args, **kwargs)

        return once

    def _latest(self) -> tuple[int, Attempt[Lease]]:
        """This thread's latest block; else, as with exit stacks, the latest of any."""
        mine = threading.get_ident()
        return next((each for each in self._entered[::-1] if each[0] == mine), self._entered[-1])

    def _enter(self, operation: Operation) -> Attempt[Lease]:
        driver, thread = self._client._driver, threading.current_thread()
        owner, watch = driver.owner_prefix + thread.name, self._client._watch_long_wait
        return driver.run(
            recipe.enter(driver.client_state, operation, self._wrap, weakref.ref(thread), owner, watch)
        )

    def _leave(self, attempt: Attempt[Lease], error: BaseException | None) -> None:
        driver = self._client._driver
        if error is None or not driver.closed:  # closing released it, and the body's own error comes first
            driver.run(recipe.leave(attempt, weakref.ref(threading.current_thread()), error))

    def _give_up(self, attempt: Attempt[Lease]) -> None:
        """The end of the block may not have begun before an interrupt. Only this object knows the lease."""
        driver = self._client._driver
        if not driver.closed:
            driver.run(recipe.give_up(attempt))
