"""Ownership in virtual time: members that come, go, stand still, crash and drain slowly; and mistakes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Final
from unittest import mock

import pytest

from holdfast.core.effects import Now, Pause, TransientError
from holdfast.errors import EngineUnavailable
from holdfast.fencing.rule import Mark
from holdfast.protocols.client_state import LeaseState
from holdfast.recipes import assignment, cell, names
from holdfast.recipes import ownership as recipe
from holdfast.recipes.assignment import State
from holdfast.recipes.ownership import Held, Member, Options
from simulation.plans import CLIENTS, WEIGHTS, make_plan
from simulation.schedules import DRIFT, IO_SECONDS, LINGER_SECONDS, STOP_AT, Run, _play
from simulation.store import CounterStore
from simulation.tickets_schedules import _seconds_for
from simulation.workloads import Board
from simulator import Ask, Clock, Link, Node, SimulatedClient, World, inject
from simulator.faults import FORGETS
from simulator.ordered import OrderedStore, TicketsClient
from simulator.servers import Server
from support.thorough import THOROUGH

KINDS: Final = tuple(kind for kind in WEIGHTS if kind not in (*FORGETS, "interrupt", "clock jump"))
"""A member is not interrupted: it is a thread or a task of its own."""

TICKETS_KINDS: Final = tuple(kind for kind in KINDS if kind != "duplicate")
"""A connection to a cluster delivers once. There a grant ends with the session, not with its ttl: one that a
copy of a request has won would stay."""

SCHEDULES: Final = 100 if THOROUGH else 13
"""Of each of the two families of engines."""
BATCHES: Final = 10 if THOROUGH else 1
"""Each batch is a test, with a time limit of its own."""
SCHEDULES_AT_MOST: Final = 100

PARTITIONS: Final = 8
GROUP: Final = "g"
TTL_SECONDS: Final = 3.0
DRAIN_SECONDS: Final = 0.8
REJOIN_SECONDS: Final = 2.0
LOOKS_EVERY: Final = 0.02


@dataclass(slots=True)
class History:
    """What was seen during a schedule."""

    wrong: list[str] = field(default_factory=list)
    members: dict[str, Member] = field(default_factory=dict)
    """The latest of each client."""
    listeners: dict[str, Work] = field(default_factory=dict)
    overdue: int = 0
    lost: int = 0
    moved: int = 0


class Work:
    """The listener of a member: it works on each partition from its assignment on, until it has stopped."""

    def __init__(self, board: Board, client: SimulatedClient, history: History) -> None:
        self.board = board
        self.client = client
        self.history = history
        self.member: Member
        self.chance = board.world.stream("work", client.id, len(history.listeners))
        self.under_way: dict[int, Held] = {}
        """Partitions on which it works, or whose work is stopping."""
        self.writes = 0

    def start(self, script: Any, held: Held) -> None:
        self.client.start(script, f"work {held.partition} {held.state.token} {self.board.world.now}")

    def granted(self, held: Held) -> Any:
        held.state.loss_callbacks.append(partial(self.lose, held))
        return held.state

    def assigned(self, held: Held) -> None:
        self.history.moved += 1
        self.under_way[held.partition] = held
        self.start(self.work(held), held)

    def revoked(self, held: Held) -> None:
        held.calls += 1
        self.start(self.drain(held), held)

    def overdue(self, held: Held) -> None:
        self.history.overdue += 1
        self.stop(held)

    def lose(self, held: Held) -> None:
        self.history.lost += 1
        self.stop(held)
        held.is_loss_reported = True
        self.member.wake_up()

    def stop(self, held: Held) -> None:
        if self.under_way.get(held.partition) is held:
            del self.under_way[held.partition]

    async def drain(self, held: Held) -> None:
        await Pause(4.0 if self.chance.random() < 0.03 else self.chance.uniform(0.05, 0.6))
        self.stop(held)
        held.calls -= 1
        self.member.wake_up()

    async def work(self, held: Held) -> None:
        """Read-modify-writes behind the guard, deliberately without a look at the lease."""
        store, name = self.board.store, f"partition {held.partition}"
        mark = Mark(held.state.token, "sim", held.state.nonce)
        try:
            if not await Ask(store, "guard advance", partial(store.advance, name, mark)):
                return
            while self.under_way.get(held.partition) is held:
                value = await Ask(store, "guarded read", partial(store.read, name))
                await Pause(self.chance.uniform(0.1, 0.6))
                self.writes += 1
                write_id = f"{self.client.id}/{held.state.nonce}/{self.writes}"
                await Ask(store, "guarded write", partial(store.write, name, mark, value + 1, write_id))
        except TransientError:
            self.client.note("store unreachable")


async def live(board: Board, client: SimulatedClient, history: History) -> None:
    """Join, stay for a while, leave, come again. Machines 0 and 1 have a name; 1 is away at the end."""
    chance = board.world.stream("life", client.machine, client.incarnation)
    await Pause(chance.random())
    while True:
        work = Work(board, client, history)
        is_named = client.machine < 2
        member = work.member = Member(
            client.client_state,
            Options(
                GROUP,
                PARTITIONS,
                f"web-{client.machine}" if is_named else f"{client.id}.{len(history.listeners)}",
                REJOIN_SECONDS if is_named else 0.0,
                TTL_SECONDS,
                DRAIN_SECONDS,
            ),
            f"host/{client.machine}/{client.id}",
            work,
            client.post,
        )
        history.members[client.id] = member
        history.listeners[f"{client.id} {len(history.listeners)}"] = work
        try:
            await recipe.join(member)
        except EngineUnavailable:
            await Pause(0.5)
            continue
        stays = STOP_AT - board.world.now if client.machine == 1 else inf
        if board.world.now < STOP_AT - 4.0:
            stays = min(stays, chance.choice((1.0, 3.0, 6.0, 90.0)) * (0.5 + chance.random()))
        if stays < STOP_AT:
            client.start(
                leave_later(member, max(stays, 0.0), chance.random() < 0.5), f"leaver {board.world.now}"
            )
        await recipe.take_part(member)
        if client.machine == 1 and board.world.now >= STOP_AT - 0.5:
            return
        await Pause(chance.choice((0.1, 1.0, 3.0)))


async def leave_later(member: Member, seconds: float, returning: bool) -> None:
    await Pause(seconds)
    member.leave(returning)


def look(world: World, history: History) -> None:
    """No two members work on a partition at a time, by their own clocks."""
    workers: dict[int, set[str]] = defaultdict(set)
    for work in history.listeners.values():
        client = work.client
        if client.alive and client.paused_until <= world.now:
            for partition, held in work.under_way.items():
                if held.state.loss(client.local()) is None:
                    workers[partition].add(f"{client.id} (token {held.state.token})")
    for partition, found in workers.items():
        if len(found) > 1 and len(history.wrong) < 5:
            history.wrong.append(f"{world.now:.3f}: {sorted(found)} work on partition {partition}")
    world.at(world.now + LOOKS_EVERY, look, world, history)


def run(seed: int, on_tickets: bool = False) -> tuple[Run, History]:
    history = History()
    world = World(f"ownership/{seed}")
    shape = world.stream("shape")

    def clock(beginning: float) -> Clock:
        return Clock(beginning, 1 + shape.uniform(-DRIFT, DRIFT))

    server = OrderedStore if on_tickets else Node
    world.node = server(world, "node", clock(shape.uniform(100, 1e6)), clock(0.0))
    store = CounterStore(world)
    board = Board(world, store, (), 1)

    def start(machine: int) -> None:
        incarnation = sum(1 for client in world.past if client.machine == machine)
        links: dict[Server, Link] = {
            server: Link(world.stream("network", machine, server.label)) for server in (world.node, store)
        }
        common = (world, machine, incarnation, clock(shape.uniform(100, 1e6)), links, IO_SECONDS)
        client = (
            TicketsClient(
                *common, LINGER_SECONDS, throws_again=False, wall=clock(0.0), seconds_for=_seconds_for
            )
            if on_tickets
            else SimulatedClient(*common, LINGER_SECONDS, throws_again=False)
        )
        if machine == len(world.clients):
            world.clients.append(client)
        else:
            world.clients[machine] = client
        client.start(live(board, client, history), "member")

    world.restart = start
    for machine in range(CLIENTS):
        start(machine)
    world.at(0.0, look, world, history)
    plan = make_plan(world.stream("faults"), 1.0, TICKETS_KINDS if on_tickets else KINDS)
    inject(world, plan)
    result = Run("ownership", seed, plan, world, board)
    _play(result)
    history.wrong += at_the_end(result, history)
    for client in world.clients:
        client.dispose()
    return result, history


def stored_state(world: World) -> State:
    record = names.group_state(GROUP)
    node = world.node
    if isinstance(node, OrderedStore):
        data = node._read_cell(record).data
    else:
        value = node.records[record].value
        data = None if value is None else value.data
    return assignment.decode(cell.decode(1, data).data, PARTITIONS)


def at_the_end(result: Run, history: History) -> list[str]:
    """Long after the last one came or went: every partition has one owner, all have their share, and no write
    that the guard accepted was lost."""
    world = result.world
    wrong = list(world.failures)
    owners: dict[int, list[str]] = defaultdict(list)
    loads = []
    for client in world.clients:
        member = history.members.get(client.id)
        if member is not None and not member.has_left:
            loads.append(len(member.owned()))
            for partition in member.owned():
                owners[partition].append(member.options.member)
    if not loads or max(loads) - min(loads) > 1:
        wrong.append(f"at the end the members own {loads}")
    target = stored_state(world)
    wrong += [
        f"at the end {owners[partition]} own {partition}, not {owner}"
        for partition, owner in enumerate(target.owners)
        if owners[partition] != [owner]
    ]
    store = result.board.store
    if store.counters != store.accepted:
        wrong.append(f"writes were lost: {store.counters}, accepted {store.accepted}")
    return wrong


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("on_tickets", [False, True], ids=["records", "tickets"])
def test_every_partition_has_one_owner_at_a_time_and_one_at_the_end(on_tickets: bool, batch: int) -> None:
    overdue = lost = moved = writes = 0
    for seed in range(batch * SCHEDULES, (batch + 1) * SCHEDULES):
        result, history = run(seed, on_tickets)
        assert history.wrong == [], f"seed {seed}"
        overdue += history.overdue
        lost += history.lost
        moved += history.moved
        writes += sum(result.board.store.accepted.values())
    assert overdue, "all work stopped in time: the schedules show nothing"
    assert lost, "nothing was lost: the schedules show nothing"
    assert moved > 20 * SCHEDULES
    assert writes > 100 * SCHEDULES


# --- mistakes -----------------------------------------------------------------------------------


def releases_before_the_work_has_stopped() -> Any:
    return mock.patch.object(Held, "has_stopped", property(lambda held: True))


def assigns_before_the_lease_is_granted() -> Any:
    genuine = recipe._take

    async def take(member: Member, partition: int) -> bool:
        now = await Now()
        state = LeaseState(
            names.partition(GROUP, partition),
            "lock",
            "exclusive",
            f"imagined-{partition}-{now}",
            member.owner,
            1,
            (),
            {},
            now,
            60.0,
            now + 60.0,
            None,
            False,
            0.0,
        )
        member.listener.assigned(Held(partition, state))
        return await genuine(member, partition)

    return mock.patch.object(recipe, "_take", take)


def every_member_has_an_assignment_of_its_own() -> Any:
    async def update(member: Member, contents: cell.Contents, state: State) -> None:
        assert member.seen is not None
        present = {name: instance.rejoin_within for name, instance in recipe._instances(member.seen).items()}
        gone = recipe._given_up(member, member.state, present)
        member.state = assignment.next_state(member.state, present, gone)
        if contents.data is None:
            await cell.set_if(member.cell, 0, assignment.encode(member.state))

    return mock.patch.object(recipe, "_update", update)


def forgets_that_a_lease_was_lost() -> Any:
    return mock.patch.object(recipe, "_forget_lost", return_value=None)


def keeps_the_partitions_of_those_that_never_return() -> Any:
    return mock.patch.object(recipe, "_given_up", return_value=set())


MUTANTS: Final[tuple[Callable[[], Any], ...]] = (
    releases_before_the_work_has_stopped,
    assigns_before_the_lease_is_granted,
    every_member_has_an_assignment_of_its_own,
    forgets_that_a_lease_was_lost,
    keeps_the_partitions_of_those_that_never_return,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_each_mistake_is_caught(mutant: Callable[[], Any]) -> None:
    for seed in range(SCHEDULES_AT_MOST):
        with mutant():
            _, history = run(seed)
        if history.wrong:
            return
    pytest.fail(f"not seen in {SCHEDULES_AT_MOST} schedules")
