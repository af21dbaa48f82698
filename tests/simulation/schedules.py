"""One schedule: a scenario, a seed, a plan; everything else follows from these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from simulation.plans import CLIENTS, WEIGHTS, make_plan
from simulation.store import CounterStore
from simulation.workloads import SCENARIOS, STOP_AT, Board, names_for
from simulator import Clock, Fault, Link, Livelock, Node, SimulatedClient, World, inject

__all__ = ["STOP_AT", "Run", "run_schedule", "scenario_of"]

DONE_SECONDS: Final = 14.0
"""So long after nothing new is begun everyone is served and done: the last holders' ttl, and all turns."""

QUIET_SECONDS: Final = 13.0
"""After that long again nothing is left behind, not even by those who crashed."""

DRIFT: Final = 0.0045
"""How far a machine's clock strays; two machines together stay below the 1 % that leases allow for."""

IO_SECONDS: Final = 0.6
LINGER_SECONDS: Final = 12.0


@dataclass(slots=True)
class Run:
    """What a schedule left for the checkers."""

    scenario: str
    seed: int
    plan: list[Fault]
    world: World
    board: Board
    unfinished: list[str] = field(default_factory=list)
    """Workers that were not done in time, and with what."""
    finished_at: float = 0.0


def scenario_of(seed: int) -> str:
    return tuple(SCENARIOS)[seed % len(SCENARIOS)]


def run_schedule(
    seed: int,
    scenario: str | None = None,
    plan: list[Fault] | None = None,
    intensity: float = 1.0,
    kinds: Sequence[str] = tuple(WEIGHTS),
    stop_at: float = STOP_AT,
) -> Run:
    scenario = scenario or scenario_of(seed)
    world = World(f"{scenario}/{seed}")
    if plan is None:
        plan = make_plan(world.stream("faults"), intensity, kinds, bursts=scenario == "burst")
    board = _build(world, scenario)
    board.stop_at = stop_at
    inject(world, plan)
    run = Run(scenario, seed, plan, world, board)
    try:
        _play(run)
    except Livelock as livelock:
        world.failures.append(str(livelock))
    for client in world.clients:
        client.dispose()
    return run


def _play(run: Run) -> None:
    world, stop_at = run.world, run.board.stop_at
    world.run(stop_at)
    while world.now < stop_at + DONE_SECONDS:
        world.run(world.now + 1.0)
        if not any(_workers(client) for client in world.clients):
            break
    run.finished_at = world.now
    run.unfinished = [
        f"{client.id} {label}: {client.tasks[label].op!r}"
        for client in world.clients
        for label in _workers(client)
    ]
    world.run(stop_at + DONE_SECONDS + QUIET_SECONDS)


def _workers(client: SimulatedClient) -> list[str]:
    return [label for label in client.tasks if label.startswith("worker")]


def _build(world: World, scenario: str) -> Board:
    shape = world.stream("shape")
    world.node = Node(
        world,
        "node",
        Clock(shape.uniform(100, 1e6), 1 + shape.uniform(-DRIFT, DRIFT)),
        Clock(0.0, 1 + shape.uniform(-DRIFT, DRIFT)),
        hands_over=shape.choice(("", "silently", "by message")),
    )
    store = CounterStore(world)
    limit = 64 if scenario == "burst" else shape.choice((1, 2, 3))
    board = Board(world, store, names_for(shape), limit)
    clocks = [Clock(shape.uniform(100, 1e6), 1 + shape.uniform(-DRIFT, DRIFT)) for _ in range(CLIENTS)]
    links = [
        {
            world.node: Link(world.stream("network", machine, "node")),
            store: Link(world.stream("network", machine, "store")),
        }
        for machine in range(CLIENTS)
    ]

    def start(machine: int) -> None:
        incarnation = sum(1 for client in world.past if client.machine == machine)
        client = SimulatedClient(
            world,
            machine,
            incarnation,
            clocks[machine],
            dict(links[machine]),
            IO_SECONDS,
            LINGER_SECONDS,
            throws_again=bool(machine % 2),
        )
        if machine == len(world.clients):
            world.clients.append(client)
        else:
            world.clients[machine] = client
        worker = SCENARIOS[scenario]
        for number in range(worker.workers_per_client):
            worker(board, client, number)

    world.restart = start
    for machine in range(CLIENTS):
        start(machine)
    return board
