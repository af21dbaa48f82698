"""The checker of lock order: contradictions are found though nothing hung, and nothing else is."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.aio
from holdfast import Client, lockorder
from holdfast.lockorder import LockOrderWarning
from holdfast.protocols.acquisitions import OBSERVERS
from support import run_python


@pytest.fixture
def locks() -> Iterator[Client]:
    with holdfast.connect("memory://") as client, lockorder.watch():
        yield client


def recorded(run: Callable[[], object]) -> list[LockOrderWarning]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LockOrderWarning)
        run()
    for each in caught:
        assert each.filename == __file__, "the place is the caller's"
    return [each.message for each in caught if isinstance(each.message, LockOrderWarning)]


def take(locks: Client, *names: str) -> None:
    if names:
        with locks.lock(names[0]):
            take(locks, *names[1:])


def take_one_way(locks: Client) -> None:
    with locks.lock("a"), locks.lock("b"):
        pass


def take_the_other_way(locks: Client) -> None:
    with locks.lock("b"), locks.lock("a"):
        pass


def test_opposite_orders_are_reported_with_both_stacks(locks: Client) -> None:
    assert recorded(lambda: take_one_way(locks)) == []
    (warning,) = recorded(lambda: take_the_other_way(locks))
    assert warning.names == ("b", "a", "b")
    before, now = warning.stacks
    assert "take_one_way" in before
    assert "take_the_other_way" not in before
    assert "take_the_other_way" in now
    assert before in str(warning)
    assert now in str(warning)
    assert "'a' while 'b' is held" in str(warning)
    assert recorded(lambda: take_the_other_way(locks)) == [], "once"


def test_an_order_over_several_locks(locks: Client) -> None:
    assert recorded(lambda: take(locks, "a", "b")) == []
    assert recorded(lambda: take(locks, "b", "c", "d")) == []
    (warning,) = recorded(lambda: take(locks, "d", "a"))
    assert warning.names == ("d", "a", "b", "d")
    assert len(warning.stacks) == 3


def test_what_is_no_contradiction(locks: Client) -> None:
    def fine() -> None:
        take(locks, "a", "b", "c")
        take(locks, "a", "c")
        take(locks, "b", "c")
        with locks.rlock("b"), locks.rlock("b"), locks.rlock("c"), locks.rlock("b"):
            pass
        with locks.semaphore("permits", 3), locks.semaphore("permits", 3):
            pass
        with locks.lock("c"):
            other = locks.lock("a")
            assert other.acquire(blocking=False), "a try waits for nobody"
            other.release()
        first = locks.lock("c")
        first.acquire()
        first.release()
        take(locks, "a")  # c is not held any more

    assert recorded(fine) == []


def test_several_locks_at_once_in_one_order_are_no_contradiction(locks: Client) -> None:
    def fine() -> None:
        for names in (("b", "a"), ("a", "b", "c"), ("c", "a"), ("b", "c", "d")):
            with locks.all(*names):
                pass
        with locks.all("a", "b"), locks.all("c", "d"):
            pass
        with locks.all("d", "b", "a", order="given"), locks.lock("e"):
            pass
        with locks.all("a", "d", order="given"), locks.lock("e"):
            pass
        with locks.all("c", "d"):
            both = locks.all("a", "b")
            assert both.acquire(blocking=False), "a try waits for nobody"
            both.release()

    assert recorded(fine) == []


@pytest.mark.parametrize("order", ["sorted", "given"])
def test_several_locks_at_once_after_another_one(locks: Client, order: Any) -> None:
    def take_all() -> None:
        with locks.lock("x"), locks.all("b", "a", order=order):
            pass

    assert recorded(take_all) == []
    (warning,) = recorded(lambda: take(locks, "b", "x"))
    assert warning.names == ("b", "x", "b")
    assert "take_all" in warning.stacks[0]


@pytest.mark.parametrize("order", ["sorted", "given"])
def test_another_one_after_several_locks_at_once(locks: Client, order: Any) -> None:
    def take_more() -> None:
        with locks.all("b", "a", order=order), locks.lock("x"):
            pass

    assert recorded(take_more) == []
    (warning,) = recorded(lambda: take(locks, "x", "b"))
    assert warning.names == ("x", "b", "x")
    assert "take_more" in warning.stacks[0]


def test_several_locks_at_once_against_one_by_one(locks: Client) -> None:
    """Sorted, ``all`` waits for b while it holds a; with an order of its own it does not."""

    def take_all(order: Any) -> None:
        with locks.all("b", "a", order=order):
            pass

    assert recorded(lambda: take(locks, "b", "a")) == []
    assert recorded(lambda: take_all("given")) == []
    (warning,) = recorded(lambda: take_all("sorted"))
    assert warning.names == ("a", "b", "a")


def test_the_first_that_is_free_is_held(locks: Client) -> None:
    def take_any() -> None:
        with locks.lock("x"), locks.any("a", "b"):
            pass
        with locks.any("a", "b"), locks.lock("x"):
            pass

    assert recorded(take_any) == [], "it waits for none in particular"
    (warning,) = recorded(lambda: take(locks, "x", "a"))
    assert warning.names == ("x", "a", "x")


def test_several_locks_of_tasks() -> None:
    async def main() -> None:
        async with holdfast.aio.connect("memory://") as client:
            async with client.all("a", "b"):
                pass
            with pytest.raises(LockOrderWarning, match="opposite orders"):
                async with client.lock("b"), client.all("a", "c"):
                    pass
            assert [info.name for info in await client.list() if info.locked] == [], "they were refused"

    with lockorder.watch(), warnings.catch_warnings():
        warnings.simplefilter("error", LockOrderWarning)
        asyncio.run(main())


def test_locks_of_other_namespaces_and_engines_are_others(locks: Client) -> None:
    def other() -> None:
        with (
            holdfast.connect("memory://", namespace="other") as second,
            holdfast.connect("memory://elsewhere") as third,
        ):
            take(second, "b", "a")
            take(third, "b", "a")

    take(locks, "a", "b")
    assert recorded(other) == []


def test_another_thread_and_another_client(locks: Client) -> None:
    def work(client: Client) -> None:
        thread = threading.Thread(target=take, args=(client, "b", "a"))
        thread.start()
        thread.join()

    take(locks, "a", "b")
    with holdfast.connect("memory://") as second, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LockOrderWarning)
        work(second)
    assert [each.category for each in caught] == [LockOrderWarning]


def test_what_one_thread_holds_is_not_what_another_one_takes(locks: Client) -> None:
    with locks.lock("a"):
        thread = threading.Thread(target=take, args=(locks, "b"))
        thread.start()
        thread.join()
    assert recorded(lambda: take(locks, "b", "a")) == []


def test_tasks() -> None:
    async def main() -> None:
        async with holdfast.aio.connect("memory://") as client:
            async with client.lock("a"), client.lock("b"):
                pass
            with pytest.raises(LockOrderWarning, match="opposite orders") as raised:
                async with client.lock("b"), client.lock("a"):
                    pass
            assert "in main" in raised.value.stacks[1]
            assert [info.name for info in await client.list() if info.locked] == [], "it was refused"

    with lockorder.watch(), warnings.catch_warnings():
        warnings.simplefilter("error", LockOrderWarning)
        asyncio.run(main())


def test_as_an_error_it_refuses_the_lock(locks: Client) -> None:
    take(locks, "a", "b")
    with pytest.raises(LockOrderWarning, match="opposite orders"):
        take(locks, "b", "a")
    assert [info.name for info in locks.list() if info.locked] == []


def test_nothing_is_watched_afterwards() -> None:
    with holdfast.connect("memory://") as locks:
        with lockorder.watch():
            take(locks, "a", "b")
        assert OBSERVERS == []
        assert recorded(lambda: take(locks, "b", "a")) == []


def test_the_option_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text(
        "import holdfast\n"
        "locks = holdfast.connect('memory://')\n"
        "def test_one_way():\n    with locks.lock('a'), locks.lock('b'): pass\n"
        "def test_the_other_way():\n    with locks.lock('b'), locks.lock('a'): pass\n"
    )
    common = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:valkey", str(tmp_path))
    error = ("-W", "error::holdfast.lockorder.LockOrderWarning")
    for arguments, status, text in (
        (common, 0, "2 passed"),
        ((*common, "--holdfast-lockorder"), 0, "LockOrderWarning: locks are taken in opposite orders"),
        ((*common, *error, "--holdfast-lockorder"), 1, "1 failed, 1 passed"),
    ):
        with run_python(None, *arguments, module="pytest") as child:
            assert child.wait() == status, child.stdout
            assert text in child.stdout
