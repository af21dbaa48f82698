"""Deadlocks in virtual time: workers that take locks in any order, and mistakes to be caught.

Most waits have no limit, so a deadlock that is not found stays to the end. A ``Deadlock`` has to be one: all
of its edges existed together at some moment, and no other waiter was told of the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final
from unittest import mock

import pytest

from holdfast.core.effects import Pause
from holdfast.errors import Deadlock, LockLost, NotHeld
from holdfast.model import WaitEdge
from holdfast.protocols import locks
from holdfast.protocols.client_state import LeaseState
from holdfast.protocols.records import several
from holdfast.recipes import deadlock as recipe
from holdfast.recipes import multilock, wait_graph
from holdfast.recipes.deadlock import DeadlockWatch
from holdfast.recipes.wait_graph import Blocker, Knot, WaitEntry
from holdfast.rules.record import Record
from simulation.plans import CLIENTS, WEIGHTS, make_plan
from simulation.schedules import DRIFT, IO_SECONDS, LINGER_SECONDS, Run, _play
from simulation.store import CounterStore
from simulation.workloads import FAULTS_END, Board, Core, SimulatedLeases, Worker
from simulator import Clock, Interrupted, Link, Node, SimulatedClient, World, inject
from simulator.faults import FORGETS
from simulator.servers import Server
from support.thorough import THOROUGH

KINDS: Final = tuple(kind for kind in WEIGHTS if kind not in FORGETS)
"""An engine that forgets its holders has no deadlock either."""

NAMES: Final = ("a", "b", "c", "permits")
LIMIT: Final = 2
SCHEDULES: Final = 200 if THOROUGH else 25
BATCHES: Final = 5 if THOROUGH else 1
"""Each batch is a test, with a time limit of its own. A thorough run has 2000 schedules of each recipe."""
SCHEDULES_AT_MOST: Final = 200

Span = tuple[float, float]


@dataclass(slots=True)
class History:
    """What happened, as the workers know it."""

    waits: dict[tuple[str, str], list[Span]] = field(default_factory=dict)
    """Owner and name → when it waited."""
    holds: dict[tuple[str, str, int], Span] = field(default_factory=dict)
    """Owner, name and token → when it held."""
    victims: list[tuple[float, tuple[WaitEdge, ...]]] = field(default_factory=list)
    rounds: int = 0
    """How often a worker got all it wanted."""


class Taker(Worker):
    """Takes two or three names, one after the other, in any order."""

    history: History

    async def once(self) -> None:
        names = self.chance.sample(NAMES, self.chance.choice((2, 2, 3)))
        taken: list[Core] = []
        try:
            for name in names:
                if not await self.take(name, taken):
                    return
                await Pause(self.chance.choice((0.0, 0.05, 0.4)))
            self.history.rounds += 1
            await Pause(self.hold_seconds())
        except Deadlock as error:
            self.history.victims.append((self.board.world.now, error.cycle))
        finally:
            await self.release_all(taken)

    def core_of(self, name: str, timeout: float | None) -> Core:
        self.kind = "semaphore" if name == "permits" else "lock"
        spec = self.spec(
            name,
            "permit" if name == "permits" else "exclusive",
            timeout=timeout if self.board.world.now < FAULTS_END else None,
            renew=True,
            max_hold=None,
            fair=True,
            deadlock="raise",
        )
        core = self.core(spec)
        core.long_wait = lambda attempt: DeadlockWatch(attempt, shows_waiters=True)
        return core

    async def take(self, name: str, taken: list[Core]) -> bool:
        core = self.core_of(name, self.chance.choice((None, None, None, 1.5, 3.0)))
        spec = core.spec
        world, waits = self.board.world, self.history.waits.setdefault((self.owner, name), [])
        waits.append((world.now, inf))
        try:
            lease = await locks.acquire(core, self.who, self.owner, spec.timeout)
        finally:
            if self.client.alive:  # else the engine does not know it yet: that takes a ttl
                waits[-1] = waits[-1][0], world.now
        if lease is None:
            return False
        taken.append(core)
        self.history.holds[self.owner, name, lease._state.token] = world.now, inf
        return True

    async def release_all(self, taken: list[Core]) -> None:
        interrupted: Interrupted | None = None
        for core in reversed(taken):
            lease = core.current()
            if lease is not None and self.client.alive:
                key = self.owner, core.spec.name, lease._state.token
                self.history.holds[key] = self.history.holds[key][0], self.board.world.now
            try:
                await self.release(core)
            except (LockLost, NotHeld):
                continue
            except Interrupted as interrupt:
                self.task.cleaning = False
                interrupted = interrupt
        if interrupted is not None:
            raise interrupted


class GroupTaker(Taker):
    """Takes one name, then two together, sorted or in any order."""

    async def once(self) -> None:
        first, *rest = self.chance.sample(NAMES, 3)
        taken: list[Core] = []
        group: tuple[LeaseState, ...] = ()
        try:
            if not await self.take(first, taken):
                return
            await Pause(self.chance.choice((0.0, 0.05, 0.4)))
            group = await self.take_together(rest)
            if group:
                self.history.rounds += 1
                await Pause(self.hold_seconds())
        except Deadlock as error:
            self.history.victims.append((self.board.world.now, error.cycle))
        finally:
            try:
                await self.give_back_together(group)
            finally:
                await self.release_all(taken)

    async def take_together(self, names: list[str]) -> tuple[LeaseState, ...]:
        cores = [self.core_of(name, self.chance.choice((None, None, None, 1.5, 3.0))) for name in names]
        order: multilock.Order = self.chance.choice(("sorted", "given"))
        core = multilock.MultiCore(self.client_state, cores[0].spec, cores, order, SimulatedLeases)
        world, begin = self.board.world, self.board.world.now
        waits = [self.history.waits.setdefault((self.owner, name), []) for name in names]
        for spans in waits:
            spans.append((begin, inf))
        try:
            leases = await multilock.acquire(core, self.who, self.owner, cores[0].spec.timeout)
        finally:
            for spans in waits:
                if self.client.alive:
                    spans[-1] = begin, world.now
        if leases is None:
            return ()
        states: tuple[LeaseState, ...] = leases._state.states
        for state in states:  # each was held from some moment of the wait
            self.history.holds[self.owner, state.name, state.token] = begin, inf
        return states

    async def give_back_together(self, states: tuple[LeaseState, ...]) -> None:
        if self.client.alive:
            for state in states:
                key = self.owner, state.name, state.token
                self.history.holds[key] = self.history.holds[key][0], self.board.world.now
        with suppress(LockLost, NotHeld):
            await self.give_back(states)


def paused_between_reads(world: World) -> Any:
    """Waiters that are paused in the middle of a search: what they read first is old when they go on."""
    original, chance = recipe._read, world.stream("reads")

    async def read(name: str) -> Record:
        if world.now < FAULTS_END and chance.random() < 0.3:
            await Pause(chance.uniform(0.5, 2.5))
        return await original(name)

    return mock.patch.object(recipe, "_read", read)


def run(seed: int, worker: type[Taker] = Taker) -> tuple[Run, History]:
    """Half of the schedules have slow searches."""
    history = History()
    taker = type("Taker", (worker,), {"history": history})
    world = World(f"deadlocks/{seed}")
    shape = world.stream("shape")

    def clock(beginning: float) -> Clock:
        return Clock(beginning, 1 + shape.uniform(-DRIFT, DRIFT))

    world.node = Node(world, "node", clock(shape.uniform(100, 1e6)), clock(0.0))
    store = CounterStore(world)
    board = Board(world, store, NAMES, LIMIT)

    def start(machine: int) -> None:
        incarnation = sum(1 for client in world.past if client.machine == machine)
        links: dict[Server, Link] = {
            server: Link(world.stream("network", machine, server.label)) for server in (world.node, store)
        }
        client = SimulatedClient(
            world,
            machine,
            incarnation,
            clock(shape.uniform(100, 1e6)),
            links,
            IO_SECONDS,
            LINGER_SECONDS,
            throws_again=False,
        )
        if machine == len(world.clients):
            world.clients.append(client)
        else:
            world.clients[machine] = client
        for number in range(2):
            taker(board, client, number)

    world.restart = start
    for machine in range(CLIENTS):
        start(machine)
    plan = make_plan(world.stream("faults"), 1.0, KINDS)
    inject(world, plan)
    result = Run("deadlocks", seed, plan, world, board)
    with paused_between_reads(world) if seed % 2 else nullcontext():
        _play(result)
    for client in world.clients:
        client.dispose()
    return result, history


def violations(result: Run, history: History) -> list[str]:
    """Every deadlock is found, every one that is reported was one, and each has one victim."""
    wrong = [f"still waiting: {each}" for each in result.unfinished]
    wrong += result.world.failures
    told: set[frozenset[tuple[str, str, int]]] = set()
    for at, cycle in history.victims:
        if not was_deadlock(history, cycle):
            wrong.append(f"at {at} it was no deadlock: {recipe.describe_cycle(cycle)}")
        edges = frozenset((edge.owner, edge.name, edge.token) for edge in cycle)
        if edges in told:
            wrong.append(f"at {at} a second victim: {recipe.describe_cycle(cycle)}")
        told.add(edges)
    return wrong


def was_deadlock(history: History, cycle: tuple[WaitEdge, ...]) -> bool:
    """At some moment, all of them waited and held, and no permit that one waits for could come free."""
    holds = [history.holds.get((edge.held_by, edge.name, edge.token), (0.0, inf)) for edge in cycle]
    begin, end = max(first for first, _ in holds), min(last for _, last in holds)
    later = [first for spans in history.waits.values() for first, _ in spans if begin < first <= end]
    needs_permits = any(edge.mode == "permit" for edge in cycle)
    return begin <= end and any(
        all(is_in(history.waits[edge.owner, edge.name], moment) for edge in cycle)
        and (not needs_permits or permits_of_waiters(history, moment) >= LIMIT)
        for moment in (begin, *later)
    )


def permits_of_waiters(history: History, moment: float) -> int:
    """How many permits were held by workers that waited for something themselves."""
    waiting = {owner for (owner, _), spans in history.waits.items() if is_in(spans, moment)}
    return sum(
        1
        for (owner, name, _), span in history.holds.items()
        if name == "permits" and owner in waiting and is_in([span], moment)
    )


def is_in(spans: list[Span], moment: float) -> bool:
    return any(begin <= moment <= end for begin, end in spans)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_every_deadlock_is_found_and_has_one_victim(batch: int) -> None:
    rounds = victims = 0
    longest = 0
    for seed in range(batch * SCHEDULES, (batch + 1) * SCHEDULES):
        result, history = run(seed)
        assert violations(result, history) == [], f"seed {seed}"
        rounds += history.rounds
        victims += len(history.victims)
        longest = max([longest, *(len(cycle) for _, cycle in history.victims)])
    assert rounds > 10 * SCHEDULES
    assert victims > SCHEDULES, "hardly any deadlock: the schedules show nothing"
    assert longest >= 3


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_group_is_a_waiter_as_any_other(batch: int) -> None:
    rounds = victims = 0
    for seed in range(batch * SCHEDULES, (batch + 1) * SCHEDULES):
        result, history = run(seed, GroupTaker)
        assert violations(result, history) == [], f"seed {seed}"
        rounds += history.rounds
        victims += len(history.victims)
    assert rounds > 5 * SCHEDULES
    assert victims > SCHEDULES, "hardly any deadlock: the schedules show nothing"


# --- mistakes -----------------------------------------------------------------------------------
# Two more, which schedules show too rarely, are caught in tests/recipes: no second read, and a free permit.


def every_waiter_is_the_victim() -> Any:
    original = DeadlockWatch._act

    def act(self: DeadlockWatch, knot: Knot) -> None:
        original(self, Knot(knot.waiters, knot.edges, self.attempt.nonce))

    return mock.patch.object(DeadlockWatch, "_act", act)


def each_chooses_another_victim() -> Any:
    """The waiter that is next to the searching one, in the order of their names."""
    original = DeadlockWatch._act

    def act(self: DeadlockWatch, knot: Knot) -> None:
        order = sorted(knot.waiters)
        victim = order[(order.index(self.attempt.nonce) + 1) % len(order)]
        original(self, Knot(knot.waiters, knot.edges, victim))

    return mock.patch.object(DeadlockWatch, "_act", act)


def a_waiter_of_a_waiter_is_taken_for_a_cycle() -> Any:
    """Two that wait for one holder, or a chain."""
    original = wait_graph.find_knots

    def find(*arguments: Any) -> list[Knot]:
        def blocker(holder: Any, entries: Any) -> Blocker:
            waits = next((each.attempt for each in entries if each.holds(holder)), None)
            return Blocker(waits or everyone[-1], holder.nonce, holder.owner, holder.token)

        everyone = sorted(entry.attempt for entry in arguments[1])
        with mock.patch.object(wait_graph, "_blocker", blocker):
            return original(*arguments)

    return mock.patch.object(recipe, "find_knots", find)


def waiters_are_believed_without_a_look_at_the_lock() -> Any:
    original = wait_graph.find_knots

    def find(records: Any, entries: Any, shows_waiters: bool) -> list[Knot]:
        return original(records, entries, False)

    async def end(self: DeadlockWatch, is_granted: bool) -> None:
        """The entry stays until its lease ends."""

    @contextmanager
    def both() -> Iterator[None]:
        with (
            mock.patch.object(recipe, "find_knots", find),
            mock.patch.object(DeadlockWatch, "end", end),
        ):
            yield

    return both()


def a_waiter_publishes_nothing() -> Any:
    async def publish(self: DeadlockWatch, held: Any) -> WaitEntry:
        return WaitEntry(
            self.attempt.nonce,
            self.attempt.client_state.client,
            self.attempt.owner,
            self.attempt.spec.name,
            self.attempt.spec.mode,
            True,
            frozenset(state.nonce[-wait_graph.NONCE_TAIL :] for state in held),
        )

    return mock.patch.object(DeadlockWatch, "_publish", publish)


def waiters_of_one_client_are_taken_for_one() -> Any:
    def held_by(attempt: Any) -> Any:
        return list(attempt.client_state.leases.values())

    return mock.patch.object(recipe, "held_by", held_by)


def what_a_group_was_granted_is_held_by_nobody() -> Any:
    original: Any = several._take_rest

    async def take_rest(*arguments: Any) -> Any:
        """As without ``caller``."""
        return await original(*arguments[:-1], None)

    return mock.patch.object(several, "_take_rest", take_rest)


def waits_of_an_order_of_its_own_stay_short() -> Any:
    return mock.patch.object(multilock, "_with_first", lambda specs, name: specs)


GROUP_MUTANTS: Final[tuple[Callable[[], Any], ...]] = (
    what_a_group_was_granted_is_held_by_nobody,
    waits_of_an_order_of_its_own_stay_short,
    every_waiter_is_the_victim,
    a_waiter_publishes_nothing,
)

MUTANTS: Final[tuple[Callable[[], Any], ...]] = (
    every_waiter_is_the_victim,
    each_chooses_another_victim,
    a_waiter_of_a_waiter_is_taken_for_a_cycle,
    waiters_are_believed_without_a_look_at_the_lock,
    a_waiter_publishes_nothing,
    waiters_of_one_client_are_taken_for_one,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_each_mistake_is_caught(mutant: Callable[[], Any]) -> None:
    seen_in_schedules(mutant, Taker)


@pytest.mark.parametrize("mutant", GROUP_MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_each_mistake_with_groups_is_caught(mutant: Callable[[], Any]) -> None:
    seen_in_schedules(mutant, GroupTaker)


def seen_in_schedules(mutant: Callable[[], Any], worker: type[Taker]) -> None:
    for seed in range(SCHEDULES_AT_MOST):
        with mutant():
            result, history = run(seed, worker)
        if violations(result, history):
            return
    pytest.fail(f"not seen in {SCHEDULES_AT_MOST} schedules")
