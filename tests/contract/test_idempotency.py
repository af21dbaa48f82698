"""Operations that run once, on every engine that stores values."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from contract.engines import needs
from contract.harness import Actor, World
from holdfast import Conflict, Deadlock, InvalidArgument, LockLost, LockTimeout, NotHeld, ReplayedError
from holdfast.facades.threads.idempotency import Attempt, Idempotent
from support import async_wait_until

pytestmark = needs("value")


class DeclinedError(Exception):
    """An error of the user's."""


class Work:
    """A function that counts its calls, plain or async as the driver needs it."""

    def __init__(self, world: World, result: object = "done", error: Exception | None = None) -> None:
        self.calls: list[Any] = []
        self.result, self.error = result, error

        def plain(*given: Any) -> object:
            self.calls.append(given)
            if self.error is not None:
                raise self.error
            return self.result

        async def awaited(*given: Any) -> object:
            return plain(*given)

        self.function: Any = plain if world.driver == "threads" else awaited


@contextlib.asynccontextmanager
async def inside(actor: Actor, operation: Idempotent) -> AsyncIterator[Attempt[Any]]:
    """``with operation`` by this actor."""
    leave = getattr(operation, actor.exit_name)
    attempt: Attempt[Any] = await actor(getattr(operation, actor.enter_name))
    try:
        yield attempt
    except BaseException as error:
        await actor(leave, type(error), error, error.__traceback__)
        raise
    else:
        await actor(leave, None, None, None)


def record(key: str) -> str:
    return f"_holdfast/idempotency:/{key}"


async def test_the_first_call_works_and_later_ones_get_its_result(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    client, other = world.client(), world.client()
    work = Work(world, {"id": 7, "lines": [1.5, None, "é"]})
    for actor, each in ((ann, client), (ann, client), (bob, other)):
        assert await actor(each.idempotent("order").run, work.function, 1) == work.result
    assert work.calls == [(1,)]
    raw = Work(world, bytes(range(256)))
    for each in (client, other):
        assert await ann(each.idempotent("raw").run, raw.function) == raw.result
    assert len(raw.calls) == 1
    assert not world.look(record("order")).locked


async def test_a_second_caller_waits_for_the_first_result(world: World) -> None:
    ann, bob = world.actor(), world.actor()
    client, other = world.client(), world.client()
    work = Work(world)
    async with inside(ann, client.idempotent("x", fingerprint=1)) as attempt:
        assert not attempt.done
        with pytest.raises(NotHeld, match="no result yet"):
            _ = attempt.result
        with pytest.raises(LockTimeout, match="under way") as busy:
            await bob(other.idempotent("x", timeout=0).run, work.function)
        assert busy.value.holders[0].token == attempt.token
        with pytest.raises(Conflict, match="another payload"):
            await bob(other.idempotent("x", fingerprint=2).run, work.function)
        waiting = bob(other.idempotent("x", fingerprint=1).run, work.function)
        await world.until_waiting(record("x"), 1, unless=waiting)
        attempt.set_result([1])
        attempt.check()
    assert await waiting == [1]
    assert work.calls == []
    async with inside(ann, client.idempotent("x")) as again:
        assert (again.done, again.result, again.lease, again.token) == (True, [1], None, None)
        with pytest.raises(NotHeld, match="done before"):
            again.set_result(2)


async def test_an_operation_that_asks_for_its_own_key_is_refused(world: World) -> None:
    ann, bob, client, work = world.actor(), world.actor(), world.client(), Work(world)
    async with inside(ann, client.idempotent("x")) as attempt:
        with pytest.raises(Deadlock, match="would wait for itself") as refused:
            await ann(client.idempotent("x", timeout=60).run, work.function)
        assert refused.value.name == record("x")
        with pytest.raises(LockTimeout):
            await ann(client.idempotent("x", timeout=0).run, work.function)
        waiting = bob(client.idempotent("x").run, work.function)
        await world.until_waiting(record("x"), 1, unless=waiting)
        attempt.set_result("first")
    assert await waiting == "first"
    assert work.calls == []


async def test_a_block_may_end_in_another_thread_or_task(world: World) -> None:
    """As fixtures of tests and exit stacks have it."""
    ann, bob, client = world.actor(), world.actor(), world.client()
    operation = client.idempotent("x")
    attempt: Attempt[Any] = await ann(getattr(operation, ann.enter_name))
    attempt.set_result(7)
    await bob(getattr(operation, bob.exit_name), None, None, None)
    assert not world.look(record("x")).locked
    async with inside(ann, operation) as again:
        assert (again.done, again.result) == (True, 7)


async def test_another_payload_under_the_same_key_is_a_conflict(world: World) -> None:
    ann, client, work = world.actor(), world.client(), Work(world)

    def operation(payload: object, **options: Any) -> Idempotent:
        return client.idempotent("x", fingerprint=payload, **options)

    await ann(operation({"amount": 3, "to": "bob"}).run, work.function)
    await ann(operation({"to": "bob", "amount": 3}).run, work.function)
    for other in ({"amount": 3.0, "to": "bob"}, {"amount": 3}, [["amount", 3], ["to", "bob"]]):
        with pytest.raises(Conflict, match="another payload"):
            await ann(operation(other).run, work.function)
    await ann(operation({"amount": 4}, scope="another tenant").run, work.function)
    assert len(work.calls) == 2


async def test_keys_and_scopes_that_look_alike_are_different(world: World) -> None:
    ann, client = world.actor(), world.client()
    keys: list[Any] = [("a", "b"), "a,b", "(a,b)", ("a,b",), 1, "1", "#1", b"1", "é" * 400, "é" * 401]
    named = [client.idempotent(key) for key in keys]
    named += [client.idempotent("b", scope="a"), client.idempotent("a/b"), client.idempotent("/b", scope="a")]
    for number, operation in enumerate(named):
        work = Work(world, number)
        assert await ann(operation.run, work.function) == number
        assert len(work.calls) == 1


async def test_errors_are_stored_by_choice(world: World) -> None:
    ann, client = world.actor(), world.client()
    failing = Work(world, error=DeclinedError("no funds", 7))

    async def outcome(operation: Idempotent) -> BaseException | None:
        try:
            await ann(operation.run, failing.function)
        except Exception as error:
            return error
        return None

    for _ in range(2):
        assert await outcome(client.idempotent("rerun")) is failing.error
    assert len(failing.calls) == 2
    for options in ({"on_error": "replay"}, {"store_errors": (ValueError, DeclinedError)}):
        key, failing.calls = str(options), []
        choice: Any = options
        first, second = [await outcome(client.idempotent(key, **choice)) for _ in range(2)]
        assert first is failing.error
        assert isinstance(second, DeclinedError)
        assert (second.args, len(failing.calls)) == (("no funds", 7), 1)
        with pytest.raises(ReplayedError, match="no funds"):
            await ann(client.idempotent(key).run, failing.function)
    failing.calls = []
    for _ in range(2):
        await outcome(client.idempotent("other", on_error="replay", store_errors=(ValueError,)))
    assert len(failing.calls) == 2


async def test_an_attempt_that_was_cut_short_is_taken_over_and_cannot_store(world: World) -> None:
    """Its lease is broken, as it expires when its process stops."""
    ann, bob = world.actor(), world.actor()
    client, other = world.client(), world.client()
    work, began, goes_on = Work(world, "first"), threading.Event(), threading.Event()

    def plain() -> str:
        began.set()
        assert goes_on.wait(60)
        return "first"

    async def awaited() -> str:
        began.set()
        await async_wait_until(goes_on.is_set)
        return "first"

    function: Any = plain if world.driver == "threads" else awaited
    first = client.idempotent("x", fingerprint="p")
    working = ann(first.run, function)
    await world.until(began.is_set)
    token = world.look(record("x")).holders[0].token
    await bob(other.break_lock, record("x"), reason="it hangs")
    async with inside(bob, other.idempotent("x", fingerprint="p")) as second:
        assert second.token is not None
        assert second.token > token
        second.set_result("second")
    goes_on.set()
    with pytest.raises(LockLost):
        await working
    assert await bob(other.idempotent("x").run, work.function) == "second"
    assert work.calls == []


async def test_what_cannot_be_stored_leaves_nothing_behind(world: World) -> None:
    ann, client = world.actor(), world.client()
    for wrong, why in ((b"x" * 65536, "at most 65472 bytes"), ({1, 2}, "neither bytes nor JSON")):
        for _ in range(2):
            work = Work(world, wrong)
            with pytest.raises(InvalidArgument, match=why):
                await ann(client.idempotent("x").run, work.function)
            assert len(work.calls) == 1
            assert not world.look(record("x")).locked
    largest = Work(world, b"x" * 65472)
    assert await ann(client.idempotent("x", fingerprint=1).run, largest.function) == largest.result
    assert await ann(client.idempotent("x", fingerprint=1).run, largest.function) == largest.result


async def test_a_decorated_function(world: World) -> None:
    ann, client = world.actor(), world.client()
    work = Work(world)
    charge: Callable[..., Any] = client.idempotent(
        lambda order, amount: ("charge", order), scope="shop", fingerprint=lambda order, amount: amount
    )(work.function)
    for _ in range(2):
        assert await ann(charge, 7, 10) == "done"
    assert await ann(charge, 8, 10) == "done"
    assert work.calls == [(7, 10), (8, 10)]
    with pytest.raises(Conflict):
        await ann(charge, 8, 11)


async def test_many_callers_at_once_run_it_once(world: World) -> None:
    actors = [world.actor() for _ in range(6)]
    clients = [world.client() for _ in range(3)]
    work = Work(world)
    results = await asyncio.gather(
        *[
            actor(clients[number % 3].idempotent("x").run, work.function)
            for number, actor in enumerate(actors)
        ]
    )
    assert results == ["done"] * 6
    assert len(work.calls) == 1


async def test_a_result_is_kept_as_long_as_said(world: World) -> None:
    ann, client, work = world.actor(), world.client(), Work(world)
    await ann(client.idempotent("x", keep=0.05).run, work.function)
    await world.until(lambda: world.look(record("x")).value is None)
    await ann(client.idempotent("x").run, work.function)
    assert len(work.calls) == 2
