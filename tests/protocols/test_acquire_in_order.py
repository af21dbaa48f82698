"""Several locks: all or none, in order."""

from __future__ import annotations

import pytest

from holdfast.core.arguments import Spec
from holdfast.core.effects import ApplyInOrder, NotApplied
from holdfast.errors import EngineUnavailable, InvalidArgument
from holdfast.protocols import records
from holdfast.protocols.client_state import LeaseState
from protocols.driver import (
    LOST_REPLY,
    LOST_REQUEST,
    REFUSED,
    Client,
    Fault,
    Task,
    World,
    a_spec,
    always,
    once,
    slow_reply,
)

NAMES = ("a1", "b1", "c1", "d1")
SPECS = tuple(a_spec(name) for name in NAMES)

Several = Task[tuple[LeaseState, ...] | records.NotGranted]


def begin(client: Client, timeout: float | None = None, specs: tuple[Spec, ...] = SPECS) -> Several:
    return client.start(records.acquire_in_order(client.client_state, specs, "o", timeout))


def held_by(world: World, client: str) -> list[str]:
    return sorted(
        name
        for name in world.records
        if any(n.startswith(f"{client}-") for n in world.holders(name) + world.queue(name))
    )


def test_all_that_are_free_are_one_round_trip() -> None:
    world = World()
    task = world.finish(begin(world.client("m")))
    states = task.result
    assert isinstance(states, tuple)
    assert [state.name for state in states] == list(NAMES)
    assert task.round_trips() == 1
    assert len({state.nonce for state in states}) == len(NAMES)


def test_it_waits_for_the_first_that_is_not_while_holding_those_before() -> None:
    world = World()
    a, m = world.client("a"), world.client("m")
    held = a.acquire(a_spec("c1"))
    task = begin(m)
    world.pass_time(40.0)
    assert held_by(world, "m") == ["a1", "b1", "c1"], "and never one behind it"
    a.run(records.release(a.client_state, held, 0.0))
    states = world.finish(task, within=0.1).result
    assert isinstance(states, tuple)
    assert all(state.loss(world.now) is None for state in states)
    assert held_by(world, "m") == list(NAMES)


@pytest.mark.parametrize("timeout", [0.0, 2.0])
@pytest.mark.parametrize("busy", NAMES)
def test_not_granted_in_time_everything_is_given_back(busy: str, timeout: float) -> None:
    world = World()
    a, m = world.client("a"), world.client("m")
    a.acquire(a_spec(busy))
    started = world.now
    task = world.finish(begin(m, timeout))
    assert isinstance(task.result, records.NotGranted)
    assert task.ended_at - started <= timeout + 0.1
    world.pass_time(1.0)
    assert held_by(world, "m") == []
    assert m.client_state.leases == {}


@pytest.mark.parametrize("wrong", NAMES)
def test_a_name_of_another_kind_leaves_nothing(wrong: str) -> None:
    world = World()
    a, m = world.client("a"), world.client("m")
    a.run(records.release(a.client_state, a.acquire(a_spec(wrong, kind="rwlock", mode="write")), 0.0))
    with pytest.raises(InvalidArgument, match="a name has one kind"):
        _ = world.finish(begin(m)).result
    world.pass_time(1.0)
    assert held_by(world, "m") == []
    assert m.client_state.leases == {}


@pytest.mark.parametrize("fault", [REFUSED, LOST_REQUEST, LOST_REPLY], ids=["refused", "request", "reply"])
def test_trouble_on_the_way_is_outlasted(fault: Fault) -> None:
    world = World()
    m = world.client("m")
    task = m.start(
        records.acquire_in_order(m.client_state, SPECS, "o", None), once(fault, ApplyInOrder, times=2)
    )
    states = world.finish(task).result
    assert isinstance(states, tuple)
    world.pass_time(1.0)
    for state in states:
        assert world.holders(state.name) == [state.nonce]
        assert state.loss(world.now) is None


def test_an_engine_that_is_never_reached_is_reported_and_nothing_stays() -> None:
    world = World()
    m = world.client("m")
    m.faults = always(LOST_REPLY)
    task = world.finish(begin(m), within=20.0)
    with pytest.raises(EngineUnavailable):
        _ = task.result
    m.faults = None
    world.pass_time(5.0)
    assert held_by(world, "m") == []


def test_grants_that_came_after_their_own_deadline_are_not_used() -> None:
    world = World()
    m = world.client("m")
    specs = tuple(a_spec(name, ttl=3.0) for name in NAMES)
    task = m.start(
        records.acquire_in_order(m.client_state, specs, "o", None), once(slow_reply(3.5), ApplyInOrder)
    )
    states = world.finish(task).result
    assert isinstance(states, tuple)
    assert [state.loss(world.now) for state in states] == [None] * len(NAMES)
    world.pass_time(1.0)
    assert [world.holders(state.name) for state in states] == [[state.nonce] for state in states]


def test_one_that_is_lost_while_waiting_for_the_next_is_taken_again() -> None:
    """All or none: what is handed out is held, every one of it."""
    world = World()
    a, b, m = world.client("a"), world.client("b"), world.client("m")
    held = a.acquire(a_spec("c1"))
    task = begin(m)
    world.pass_time(1.0)
    b.run(records.break_lock(b.client_state, "a1", None, "stuck"))
    world.pass_time(1.0)
    a.run(records.release(a.client_state, held, 0.0))
    states = world.finish(task).result
    assert isinstance(states, tuple)
    assert [state.loss(world.now) for state in states] == [None] * len(NAMES)
    world.pass_time(1.0)
    assert [world.holders(state.name) for state in states] == [[state.nonce] for state in states]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("busy", [None, "a1", "c1"])
def test_an_interrupt_at_any_operation_leaves_nothing(busy: str | None, after: bool) -> None:
    def tell(world: World) -> Several:
        a, m = world.client("a"), world.client("m")
        if busy is not None:
            held = a.acquire(a_spec(busy))
            world.at(world.now + 1.5, lambda: release(a, held))
        return begin(m)

    def release(client: Client, state: LeaseState) -> None:
        client.start(records.release(client.client_state, state, 0.0))

    world = World()
    for index in range(len(world.finish(tell(world)).ops)):
        world = World()
        task = tell(world)
        task.interrupt_at, task.interrupt_after = index, after
        world.finish(task)
        with pytest.raises(KeyboardInterrupt):
            _ = task.result
        world.pass_time(5.0)
        assert held_by(world, "m") == [], task.ops[index]
        assert (world.clients["m"].client_state.leases, world.clients["m"].client_state.waiting) == ({}, {})


def test_a_release_that_fails_after_some_of_them_is_no_loss_of_those() -> None:
    """Engines that release one after the other say what became of the one that failed."""
    world = World()
    m = world.client("m")
    states = world.finish(begin(m)).result
    assert isinstance(states, tuple)
    fails_late = once(Fault(NotApplied("the last one was not sent")), ApplyInOrder)
    task = m.start(records.release_all(m.client_state, states, 5.0), faults=fails_late)
    assert world.finish(task).result is None
    assert held_by(world, "m") == []
    assert [(state.ended, state.reason) for state in states] == [("released", None)] * len(NAMES)


def test_callers_that_agree_on_an_order_do_not_deadlock() -> None:
    world = World()
    tasks = []
    for name in "mnop":
        client = world.client(name)

        async def take(client: Client = client) -> int:
            states = await records.acquire_in_order(client.client_state, SPECS, "o", None)
            assert isinstance(states, tuple)
            for state in states:
                await records.release(client.client_state, state, 0.0)
            return len(states)

        tasks.append(client.start(take()))
    assert [world.finish(task, within=5.0).result for task in tasks] == [4, 4, 4, 4]
