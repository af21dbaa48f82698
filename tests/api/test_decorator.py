"""A lock decorates functions: each call runs inside it."""

from __future__ import annotations

import asyncio
import functools
import inspect
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast import Client, InvalidArgument, LockTimeout


@pytest.fixture
def client() -> Iterator[Client]:
    with holdfast.connect(f"memory://{secrets.token_hex(8)}") as client:
        yield client


def test_a_plain_function(client: Client) -> None:
    @client.lock("x")
    def work(a: int, *, b: str = "b") -> str:
        """What it does."""
        assert client.inspect("x").locked
        return f"{a}{b}"

    assert work(1, b="c") == "1c"
    assert not client.inspect("x").locked
    assert (work.__name__, work.__doc__) == ("work", "What it does.")
    assert inspect.signature(work).parameters.keys() == {"a", "b"}


def test_what_it_raises_comes_through(client: Client) -> None:
    @client.lock("x")
    def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert not client.inspect("x").locked


def test_a_call_that_is_not_granted_does_not_run(client: Client) -> None:
    ran = []

    @client.lock("x", timeout=0)
    def work() -> None:
        ran.append(1)

    with client.lock("x"), pytest.raises(LockTimeout):
        work()
    assert ran == []


def test_methods_partials_and_callables(client: Client) -> None:
    class Account:
        @client.lock("x")
        def close(self) -> str:
            return f"closed {client.inspect('x').locked}"

    assert Account().close() == "closed True"
    assert client.lock("x")(functools.partial(divmod, 7))(2) == (3, 1)
    assert client.semaphore("s", 2)(len)([1, 2]) == 2


def test_a_reentrant_function_calls_itself(client: Client) -> None:
    @client.rlock("x")
    def count(n: int) -> int:
        return 0 if n == 0 else 1 + count(n - 1)

    assert count(5) == 5


def test_one_lock_decorates_several(client: Client) -> None:
    lock = client.rwlock("x")

    @lock.read()
    def read() -> str:
        return client.inspect("x").holders[0].mode

    @lock.write()
    def write() -> str:
        return client.inspect("x").holders[0].mode

    assert (read(), write()) == ("read", "write")


def test_an_async_function() -> None:
    async def main() -> None:
        async with holdfast.aio.connect("memory://decorator-async") as client:

            @client.lock("x")
            async def work(a: int) -> int:
                assert (await client.inspect("x")).locked
                return a + 1

            assert await work(1) == 2
            assert not (await client.inspect("x")).locked
            assert inspect.iscoroutinefunction(work)
            assert await asyncio.gather(*(work(n) for n in range(10))) == list(range(1, 11))

    asyncio.run(main())


def plain() -> None: ...


async def coroutine() -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "reported"),
    [
        (coroutine, r"holdfast\.aio"),
        (generator, "generator"),
        (async_generator, "generator"),
        (7, "functions"),
        ("x", "functions"),
    ],
)
def test_what_would_run_outside_the_lock_is_refused(client: Client, function: Any, reported: str) -> None:
    with pytest.raises(InvalidArgument, match=reported):
        client.lock("x")(function)


@pytest.mark.parametrize(
    ("function", "reported"),
    [(plain, "async"), (generator, "generator"), (async_generator, "generator"), (None, "functions")],
)
def test_the_same_in_asyncio(function: Any, reported: str) -> None:
    with pytest.raises(InvalidArgument, match=reported):
        holdfast.aio.connect("memory://").lock("x")(function)
