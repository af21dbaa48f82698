"""Processes that wait for each other, on every engine: one gives up, the others go on."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

import holdfast
from contract.engines import VARIANTS, each_engine, fresh_namespace, fresh_url
from holdfast import Unsupported
from support import Process, run_python, wait_until

TAKE_TWO = """
import sys
import holdfast

url, namespace, first, second, option = sys.argv[1:]
with holdfast.connect(url, namespace=namespace) as locks, locks.lock(first) as lease:
    print("held", flush=True)
    input()
    try:
        with locks.lock(second, deadlock=option, timeout=60):
            print("granted", flush=True)
    except holdfast.Deadlock as deadlock:
        print("deadlock", *[edge.name for edge in deadlock.cycle], flush=True)
"""


def start(
    stack: ExitStack, url: str, namespace: str, orders: list[tuple[str, str]], option: str
) -> list[Process]:
    """Each holds its first name and waits for the second."""
    children = [
        stack.enter_context(run_python(TAKE_TWO, url, namespace, first, second, option))
        for first, second in orders
    ]
    for child in children:
        child.expect("held")
    for child in children:
        child.send("go on")
    return children


@pytest.mark.slow
@pytest.mark.parametrize("scheme", each_engine(but=VARIANTS | {"memory", "redlock"}))
def test_one_of_them_gives_up_and_the_others_go_on(scheme: str, tmp_path: Path) -> None:
    """Two in opposite orders, three in a ring, and one that waits for the ring, at the same time."""
    url, namespace = fresh_url(scheme, tmp_path), fresh_namespace()
    two, ring = [("a", "b"), ("b", "a")], [("x", "y"), ("y", "z"), ("z", "x"), ("outside", "x")]
    with ExitStack() as stack:
        children = start(stack, url, namespace, two + ring, "raise")
        said = [child.expect() for child in children]
        for child in children:
            child.succeed()
    assert sorted(said[:2])[1] == "granted"
    assert sorted(min(said[:2]).split()[1:]) == ["a", "b"]
    assert sorted(said[2:])[1:] == ["granted"] * 3
    assert sorted(min(said[2:]).split()[1:]) == ["x", "y", "z"]
    assert said[5] == "granted", "it was in no cycle"


@pytest.mark.slow
@pytest.mark.engine("sqlite")
def test_a_waiter_that_is_killed_ends_the_deadlock(tmp_path: Path) -> None:
    url, namespace = fresh_url("sqlite", tmp_path), fresh_namespace()
    with ExitStack() as stack, holdfast.connect(url, namespace=namespace) as locks:
        first, second = start(stack, url, namespace, [("a", "b"), ("b", "a")], "warn")
        wait_until(lambda: len(locks.deadlocks()) == 1)
        (cycle,) = locks.deadlocks()
        assert {edge.name for edge in cycle} == {"a", "b"}
        first.kill()
        second.expect("granted")
        wait_until(lambda: not locks.deadlocks())
        second.succeed()


@pytest.mark.engine("redlock")
def test_an_engine_that_cannot_tell(tmp_path: Path) -> None:
    with holdfast.connect(fresh_url("redlock", tmp_path), namespace=fresh_namespace()) as locks:
        with pytest.raises(Unsupported, match=r"one place.*postgresql://"):
            locks.deadlocks()
        with locks.lock("a", deadlock="raise"), locks.lock("b", deadlock="raise"):
            assert locks.lock("a", deadlock="raise").acquire(timeout=1.5) is None, "the option does nothing"
