"""Schedules of the sessions family: the same workers, on a server whose locks belong to sessions."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from typing import Final
from unittest import mock

from holdfast.engines.postgres.advisory import pool
from holdfast.protocols import locks, records
from holdfast.protocols.client_state import LeaseState
from simulation.plans import CLIENTS, WEIGHTS, make_plan
from simulation.schedules import DRIFT, IO_SECONDS, Run, _play
from simulation.store import CounterStore
from simulation.workloads import (
    FAULTS_END,
    SCENARIOS,
    Board,
    Locks,
    ReadersAndWriters,
    Tools,
    Worker,
    names_for,
)
from simulator import Clock, Fault, Link, Livelock, World
from simulator.advisory import SessionsClient
from simulator.sessions import SESSION_KINDS, SessionServer, inject_sessions

__all__ = ["KINDS", "SESSIONS_SCENARIOS", "run_sessions", "sessions_scenario_of"]

KINDS: Final = (
    *(kind for kind in WEIGHTS if kind not in ("duplicate", "node amnesia", "node flush")),
    *SESSION_KINDS,
)
"""The faults. A connection delivers once, a disk is not lost, and a crash may roll back the last second."""

LOOK_SECONDS: Final = 0.25

FEW: Final = {"SESSIONS_MAX": 5, "WAITERS_MAX": 2, "SESSIONS_FOR_LOAD": 2, "SPARE_SESSIONS_MAX": 1}
"""Limits of one client, where many of its threads need sessions."""


class Handling(Tools):
    """All other operations on a lock that cannot be handed over."""

    async def body(self, state: LeaseState) -> None:
        what = self.chance.random()
        if self.board.world.now > FAULTS_END and what >= 0.5:
            what = 1.0  # no operation any more that costs other clients a ttl
        if what < 0.25:
            await locks.set_value(self.client_state, state, str(self.chance.random()).encode(), 3600.0)
        elif what < 0.5:
            await locks.extend(self.client_state, state, self.chance.choice((2.0, 4.0, 5.0)))
        elif what < 0.55:
            records.dropped(self.client_state, state)
            return
        await Worker.body(self, state)


class Crowd(Locks):
    """More threads than sessions, on three names."""

    workers_per_client = 6

    async def once(self) -> None:
        await self.hold(self.spec(self.chance.choice(self.board.names)))

    def hold_seconds(self) -> float:
        return super().hold_seconds() / 4

    def idle_seconds(self) -> float:
        return 1.0


class CrowdOfReaders(ReadersAndWriters):
    """The same, with readers that hold a lock together."""

    workers_per_client = 4

    def hold_seconds(self) -> float:
        return super().hold_seconds() / 2


SESSIONS_SCENARIOS: Final[dict[str, type[Worker]]] = {
    **{f"sessions {name}": SCENARIOS[name] for name in ("lock", "rwlock", "several", "rlock", "guard")},
    "sessions tools": Handling,
    "sessions crowd": Crowd,
    "sessions readers": CrowdOfReaders,
}


def sessions_scenario_of(seed: int) -> str:
    return tuple(SESSIONS_SCENARIOS)[seed % len(SESSIONS_SCENARIOS)]


def run_sessions(
    seed: int,
    scenario: str | None = None,
    plan: list[Fault] | None = None,
    intensity: float = 1.0,
    kinds: Sequence[str] = KINDS,
) -> Run:
    scenario = scenario or sessions_scenario_of(seed)
    world = World(f"{scenario}/{seed}".replace(" ", "/", 1))
    if plan is None:
        plan = make_sessions_plan(world.stream("faults"), intensity, kinds)
    server, board = _build(world, scenario)
    inject_sessions(world, server, plan)
    world.at(LOOK_SECONDS, _look_for_strays, world, server)
    run = Run(scenario, seed, plan, world, board)
    with contextlib.ExitStack() as stack:
        if scenario in ("sessions crowd", "sessions readers"):
            for limit, count in FEW.items():
                stack.enter_context(mock.patch.object(pool, limit, count))
        try:
            _play(run)
        except Livelock as livelock:
            world.failures.append(str(livelock))
    for client in world.clients:
        client.dispose()
    return run


def _look_for_strays(world: World, server: SessionServer) -> None:
    """Note locks on living sessions that their clients do not know: no client would release them."""
    for key, name in server.functions.names.items():
        for backend, shared in server.locks.holders(key):
            session = backend.connection.client_end.session
            if session is None or session.is_closed or not backend.connection.is_open:
                continue
            attempt = session.keys.get(key)
            if backend.connection.client.alive and (attempt is None or attempt.session is not session):
                backend.connection.client.note("stray lock", name, backend.pid, shared)
    world.at(world.now + LOOK_SECONDS, _look_for_strays, world, server)


def make_sessions_plan(chance: random.Random, intensity: float, kinds: Sequence[str]) -> list[Fault]:
    usual = [kind for kind in kinds if kind not in SESSION_KINDS]
    plan = make_plan(chance, intensity, usual) if usual else []
    own = [kind for kind in kinds if kind in SESSION_KINDS]
    count = round(chance.choice((0, 0, 1, 2, 4)) * intensity) if own else 0
    plan += [_make(chance.choice(own), chance) for _ in range(count)]
    return sorted(plan, key=lambda fault: fault.at)


def _make(kind: str, chance: random.Random) -> Fault:
    at = round(chance.uniform(0.3, FAULTS_END - 4.0), 4)
    target = chance.randrange(CLIENTS)
    if kind == "cancel":
        return Fault(at, kind, target, round(chance.uniform(0.2, 3.0), 3), chance.choice((0.1, 0.4)))
    return Fault(at, kind, target, 0.0, float(chance.randrange(8)) if kind == "terminate" else 0.0)


def _build(world: World, scenario: str) -> tuple[SessionServer, Board]:
    shape = world.stream("shape")
    server = SessionServer(
        world,
        "server",
        Clock(shape.uniform(100, 1e6), 1 + shape.uniform(-DRIFT, DRIFT)),
        Clock(0.0, 1 + shape.uniform(-DRIFT, DRIFT)),
    )
    world.node = server
    store = CounterStore(world)
    board = Board(world, store, names_for(shape), 1)
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
        client = SessionsClient(
            world,
            machine,
            incarnation,
            clocks[machine],
            dict(links[machine]),
            IO_SECONDS,
            0.0,
            throws_again=bool(machine % 2),
        )
        if machine == len(world.clients):
            world.clients.append(client)
        else:
            world.clients[machine] = client
        worker = SESSIONS_SCENARIOS[scenario]
        for number in range(worker.workers_per_client):
            worker(board, client, number)

    world.restart = start
    for machine in range(CLIENTS):
        start(machine)
    return server, board
