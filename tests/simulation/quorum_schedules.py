"""One schedule on a quorum of nodes: a scenario, a seed, a plan; everything else follows from these."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.core.effects import Pause, TransientError
from holdfast.errors import EngineUnavailable
from holdfast.protocols import locks, records
from holdfast.protocols import quorum as family
from holdfast.protocols.client_state import LeaseState
from simulation.plans import WALL_JUMP, wall_jumps
from simulation.schedules import DRIFT, IO_SECONDS, LINGER_SECONDS, Run
from simulation.store import CounterStore
from simulation.workloads import FAULTS_END, STOP_AT, Board, Guarded, Locks, Reentrant, Several, Tools, Worker
from simulator import (
    Clock,
    Fault,
    Link,
    Livelock,
    Node,
    QuorumClient,
    QuorumNode,
    SimulatedClient,
    World,
    inject_quorum,
)

__all__ = ["QUORUM_KINDS", "QUORUM_SCENARIOS", "QuorumRun", "quorum_scenario_of", "run_quorum_schedule"]

CLIENTS: Final = 4
DONE_BY: Final = 34.0
DRIFTS: Final = (0.01, 0.01, 0.2)
ENDS_AT: Final = DONE_BY + 13.0

WEIGHTS: Final = {
    "loss": 2,
    "duplicate": 2,
    "slow": 3,
    "partition": 2,
    "partition-in": 2,
    "partition-out": 2,
    "pause": 4,
    "crash": 2,
    "interrupt": 5,
    "node crash": 4,
    "node hang": 4,
    "node slow": 3,
    "node cut": 3,
    "node amnesia": 2,
    "node rollback": 2,
    "node flush": 1,
    "clock jump": 2,
    "clock flicker": 2,
}
QUORUM_KINDS: Final = (*WEIGHTS, WALL_JUMP)
FORGETFUL: Final = ("node amnesia", "node rollback", "node flush")


class Handling(Tools):
    """All else one can do with a lock that lives on several nodes."""

    async def body(self, state: LeaseState) -> None:
        what = self.chance.random()
        if self.board.world.now > FAULTS_END and what >= 0.3:
            what = 1.0  # nothing any more that costs the others a ttl
        if what < 0.3:
            await locks.extend(self.client_state, state, self.chance.choice((2.0, 4.0, 5.0)))
        elif what < 0.4:
            secret = await locks.export(self.client_state, state)
            spec = self.spec(state.name, timeout=None, grace=0.0, max_hold=None)
            self.board.handed_over.append((spec, state.nonce, secret))
            return
        elif what < 0.45:
            records.dropped(self.client_state, state)
            return
        await Worker.body(self, state)


class Rush(Locks):
    """Everyone at the same moment: nodes answer different numbers, and nobody gets a majority at first."""

    async def once(self) -> None:
        await Pause(1.0 - self.board.world.now % 1.0)
        await self.hold(self.spec(self.board.names[0], timeout=1.0, ttl=2.0, max_hold=None, grace=0.0))


class Strangers(Locks):
    """Each comes as if for the first time, with a hint that helps nobody, and is soon gone: what tells the
    grants apart are the nodes alone."""

    workers_per_client = 1

    def idle_seconds(self) -> float:
        return 0.05 if self.board.world.now < FAULTS_END else 1.0

    def hold_seconds(self) -> float:
        return 0.002

    async def once(self) -> None:
        client = self.client
        assert isinstance(client, QuorumClient)
        client.quorum.largest_seen = 0
        client.wall.rate = 0.0
        await self.hold(self.spec(self.board.names[0], timeout=0.05, ttl=2.0, max_hold=None, grace=0.0))


QUORUM_SCENARIOS: Final[dict[str, type[Worker]]] = {
    "quorum lock": Locks,
    "quorum rlock": Reentrant,
    "quorum several": Several,
    "quorum guard": Guarded,
    "quorum handling": Handling,
    "quorum rush": Rush,
    "quorum strangers": Strangers,
}


@dataclass(slots=True)
class QuorumRun(Run):
    """What such a schedule left for the checkers."""

    nodes: list[QuorumNode] = field(default_factory=list)


def quorum_scenario_of(seed: int) -> str:
    return tuple(QUORUM_SCENARIOS)[seed % len(QUORUM_SCENARIOS)]


def make_quorum_plan(
    chance: random.Random, nodes: Sequence[QuorumNode], kinds: Sequence[str], intensity: float
) -> list[Fault]:
    """Nothing, a little or a lot. At most a minority forgets: the others know what was issued."""
    count = round(chance.choice((0, 1, 2, 4, 7, 12)) * intensity)
    fallible = [each.index for each in nodes if not each.durable]
    possible = [kind for kind in kinds if kind in WEIGHTS and (fallible or kind != "node rollback")]
    weights = [WEIGHTS[kind] for kind in possible]
    minority = fallible or [chance.randrange(len(nodes))]
    plan = [_make(kind, chance, len(nodes), minority) for kind in chance.choices(possible, weights, k=count)]
    if WALL_JUMP in kinds:
        plan += wall_jumps(chance)
    return sorted(plan, key=lambda fault: fault.at)


def _make(kind: str, chance: random.Random, size: int, minority: Sequence[int]) -> Fault:
    at = round(chance.uniform(0.3, FAULTS_END - 4.0), 4)
    target = chance.randrange(-1 if kind in ("loss", "duplicate", "slow") else 0, CLIENTS)
    duration, amount = 0.0, 0.0
    if kind in ("loss", "duplicate"):
        duration, amount = chance.uniform(0.5, 4.0), chance.choice((0.1, 0.3))
    elif kind == "slow":
        duration, amount = chance.uniform(0.5, 4.0), chance.choice((0.02, 0.05, 0.1, 1.0))
    elif kind.startswith("partition"):
        duration = chance.choice((0.1, 0.5, 1.5, 4.0)) * chance.uniform(0.5, 1.0)
    elif kind == "pause":
        duration = chance.choice((0.1, 1.0, 3.0, 7.0)) * chance.uniform(0.5, 1.0)
    elif kind == "crash":
        duration = chance.uniform(0.1, 2.0)
    elif kind == "interrupt":
        amount = float(chance.choice((0, 1, 2, 3, 5, 8, 13, 21, 34)))
    else:
        target = chance.choice(minority) if kind in FORGETFUL else chance.randrange(size)
        duration = chance.uniform(0.1, 3.0)
        if kind == "node slow":
            amount = chance.choice((0.03, 0.06, 0.3, 2.0))
        elif kind == "node rollback":
            duration, amount = chance.uniform(0.05, 2.0), chance.uniform(0.1, 1.0)
        elif kind == "clock jump":
            duration, amount = 0.0, chance.choice((-2.0, 1.0, 5.0, 3600.0))
        elif kind == "clock flicker":
            duration = 0.0
    return Fault(at, kind, target, round(duration, 3), round(amount, 3))


def run_quorum_schedule(
    seed: int,
    scenario: str | None = None,
    plan: list[Fault] | None = None,
    intensity: float = 1.0,
    kinds: Sequence[str] = QUORUM_KINDS,
    size: int = 0,
    node_seconds: float = 0.0,
    drift: float = 0.0,
) -> QuorumRun:
    """What is 0 is left to chance."""
    scenario = scenario or quorum_scenario_of(seed)
    world = World(f"{scenario}/{seed}")
    shape = world.stream("shape")
    size = size or shape.choice((3, 5))
    fallible = shape.sample(range(size), shape.randrange((size - 1) // 2 + 1))
    nodes = [_node(world, index, shape, index not in fallible) for index in range(size)]
    drift = drift or world.stream("drift").choice(DRIFTS)
    _let_drift(world, nodes, drift)
    if plan is None:
        plan = make_quorum_plan(world.stream("faults"), nodes, kinds, intensity)
    board = _build(world, scenario, nodes, shape, node_seconds, drift)
    inject_quorum(world, nodes, plan)
    run = QuorumRun(scenario, seed, plan, world, board, nodes=nodes)
    try:
        _play(run)
    except Livelock as livelock:
        world.failures.append(str(livelock))
    for client in world.by_id.values():
        client.dispose()
    return run


def _node(world: World, index: int, shape: random.Random, durable: bool) -> QuorumNode:
    """Clocks of nodes differ a little; most nodes remember everything and say so."""
    wall = Clock(shape.uniform(-2.0, 2.0), 1 + shape.uniform(-DRIFT, DRIFT))
    return QuorumNode(world, index, wall, durable)


def _let_drift(world: World, nodes: Sequence[QuorumNode], drift: float) -> None:
    """Where clients allow for it, clocks of nodes run that much faster than theirs."""
    if drift > DRIFTS[0]:
        speeds = world.stream("speeds")
        for each in nodes:
            each.wall.rate += speeds.uniform(0.0, drift - DRIFTS[0])


def _play(run: QuorumRun) -> None:
    world = run.world
    world.run(STOP_AT)
    while world.now < DONE_BY:
        world.run(world.now + 1.0)
        if not any(_workers(client) for client in world.clients):
            break
    run.finished_at = world.now
    run.unfinished = [
        f"{client.id} {label}: {client.tasks[label].op!r}"
        for client in world.clients
        for label in _workers(client)
    ]
    world.run(ENDS_AT)


def _workers(client: SimulatedClient) -> list[str]:
    return [label for label in client.tasks if label.startswith("worker")]


def _build(
    world: World,
    scenario: str,
    nodes: list[QuorumNode],
    shape: random.Random,
    node_seconds: float,
    drift: float,
) -> Board:
    world.node = Node(world, "unused", Clock(0.0, 1.0), Clock(0.0, 1.0))
    store = CounterStore(world)
    board = Board(world, store, ("a", "b", "c"), 1)
    clocks = [Clock(shape.uniform(100, 1e6), 1 + shape.uniform(-DRIFT, DRIFT)) for _ in range(CLIENTS + 1)]
    # Clocks that stand still, or far apart, leave the numbers to the nodes: hints change nothing there.
    spread, rate = shape.choice(((0.01, 1.0), (1.0, 1.0), (50.0, 1.0), (5.0, 0.0), (5.0, 0.0)))
    walls = [_client_wall(shape, spread, rate) for _ in range(CLIENTS + 1)]
    links = [
        {server: Link(world.stream("network", machine, server.label)) for server in (*nodes, store)}
        for machine in range(CLIENTS + 1)
    ]

    node_seconds = node_seconds or shape.choice((0.05, 0.05, 0.05, 0.3, 2.0))

    def make(machine: int) -> QuorumClient:
        incarnation = sum(1 for client in world.past if client.machine == machine)
        return QuorumClient(
            world,
            machine,
            incarnation,
            clocks[machine],
            walls[machine],
            dict(links[machine]),
            nodes,
            IO_SECONDS,
            LINGER_SECONDS,
            throws_again=bool(machine % 2),
            node_seconds=node_seconds,
            drift=drift,
        )

    def start(machine: int) -> None:
        client = make(machine)
        if machine == len(world.clients):
            world.clients.append(client)
        else:
            world.clients[machine] = client
        worker = QUORUM_SCENARIOS[scenario]
        for number in range(worker.workers_per_client):
            worker(board, client, number)

    world.restart = start
    for machine in range(CLIENTS):
        start(machine)
    operator = make(CLIENTS)
    operator.start(_operate(operator), "operator")
    return board


def _client_wall(shape: random.Random, spread: float, rate: float) -> Clock:
    """Now and then an hour off."""
    off = shape.choice((-3600.0, 3600.0)) if shape.random() < 0.1 else shape.uniform(-spread, spread)
    return Clock(off, rate)


async def _operate(client: QuorumClient) -> None:
    """One who is called when nodes have forgotten, and knows the command for it."""
    while True:
        await Pause(0.9)
        try:
            found = enumerate(await family.status(client.quorum))
            lost = frozenset(index for index, each in found if "rejoin" in each.advice)
            if lost:
                told = await family.rejoin(client.quorum, lost)
                client.note("rejoined", told)
        except (TransientError, EngineUnavailable) as error:
            client.note("operator", str(error))
