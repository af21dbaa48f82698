"""Schedules of the tickets family: the same workers and faults, on an ordered store with sessions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from simulation.plans import CLIENTS, WALL_JUMP, WEIGHTS, make_plan
from simulation.schedules import DRIFT, IO_SECONDS, LINGER_SECONDS, Run, _play
from simulation.store import CounterStore
from simulation.workloads import SCENARIOS, Board, names_for
from simulator import Clock, Fault, Link, Livelock, World, inject
from simulator.faults import FORGETS
from simulator.ordered import OrderedStore, TicketsClient

__all__ = ["KINDS", "TICKETS_SCENARIOS", "run_tickets", "tickets_scenario_of"]

KINDS: Final = (
    *(kind for kind in WEIGHTS if kind not in (*FORGETS, "clock jump", "duplicate")),
    WALL_JUMP,
)
"""What can go wrong. A cluster does not forget, nobody sets its clock, and a connection delivers once."""

TICKETS_SCENARIOS: Final = {f"tickets {name}": worker for name, worker in SCENARIOS.items()}


def tickets_scenario_of(seed: int) -> str:
    return tuple(TICKETS_SCENARIOS)[seed % len(TICKETS_SCENARIOS)]


def run_tickets(
    seed: int,
    scenario: str | None = None,
    plan: list[Fault] | None = None,
    intensity: float = 1.0,
    kinds: Sequence[str] = KINDS,
) -> Run:
    scenario = scenario or tickets_scenario_of(seed)
    world = World(f"{scenario}/{seed}".replace(" ", "/", 1))
    if plan is None:
        plan = make_plan(world.stream("faults"), intensity, kinds, bursts=scenario == "tickets burst")
    board = _build(world, scenario)
    inject(world, plan)
    run = Run(scenario, seed, plan, world, board)
    try:
        _play(run)
    except Livelock as livelock:
        world.failures.append(str(livelock))
    for client in world.clients:
        client.dispose()
    return run


def _seconds_for(ttl: float) -> float:
    return float(max(math.ceil(ttl), 1))


def _build(world: World, scenario: str) -> Board:
    shape = world.stream("shape")
    world.node = OrderedStore(
        world,
        "store",
        Clock(shape.uniform(100, 1e6), 1 + shape.uniform(-DRIFT, DRIFT)),
        Clock(0.0, 1 + shape.uniform(-DRIFT, DRIFT)),
    )
    store = CounterStore(world)
    limit = 64 if scenario == "tickets burst" else shape.choice((1, 2, 3))
    board = Board(world, store, names_for(shape), limit)
    clocks = [Clock(shape.uniform(100, 1e6), 1 + shape.uniform(-DRIFT, DRIFT)) for _ in range(CLIENTS)]
    stream = world.stream("walls")
    walls = [Clock(stream.uniform(-2.0, 2.0), 1 + stream.uniform(-DRIFT, DRIFT)) for _ in range(CLIENTS)]
    links = [
        {
            world.node: Link(world.stream("network", machine, "node")),
            store: Link(world.stream("network", machine, "store")),
        }
        for machine in range(CLIENTS)
    ]

    def start(machine: int) -> None:
        incarnation = sum(1 for client in world.past if client.machine == machine)
        client = TicketsClient(
            world,
            machine,
            incarnation,
            clocks[machine],
            dict(links[machine]),
            IO_SECONDS,
            LINGER_SECONDS,
            throws_again=bool(machine % 2),
            wall=walls[machine],
            seconds_for=_seconds_for,
        )
        if machine == len(world.clients):
            world.clients.append(client)
        else:
            world.clients[machine] = client
        worker = TICKETS_SCENARIOS[scenario]
        for number in range(worker.workers_per_client):
            worker(board, client, number)

    world.restart = start
    for machine in range(CLIENTS):
        start(machine)
    return board
