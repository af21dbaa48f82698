"""Barriers in virtual time: parties that crash, are interrupted and lose replies; and mistakes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final
from unittest import mock

import pytest

from holdfast.core.effects import Pause
from holdfast.errors import BrokenBarrierError, EngineUnavailable
from holdfast.protocols.client_state import LeaseState
from holdfast.recipes import barrier as recipe
from holdfast.recipes import cell
from holdfast.recipes.barrier import State
from simulation.plans import CLIENTS, WEIGHTS, make_plan
from simulation.schedules import DRIFT, IO_SECONDS, LINGER_SECONDS, STOP_AT, Run, _play
from simulation.store import CounterStore
from simulation.workloads import Board, Worker
from simulator import Clock, Crashed, Interrupted, Link, Node, SimulatedClient, World, inject
from simulator.faults import FORGETS
from simulator.servers import Server
from support.thorough import THOROUGH

KINDS: Final = tuple(kind for kind in WEIGHTS if kind not in (*FORGETS, "clock jump"))

SCHEDULES: Final = 200 if THOROUGH else 25
BATCHES: Final = 10 if THOROUGH else 1
"""Each batch is a test, with a time limit of its own. A thorough run has 2000 schedules of each recipe."""
SCHEDULES_AT_MOST: Final = 200

PARTIES: Final = 3
TTL_SECONDS: Final = 3.0
GONE_SECONDS: Final = TTL_SECONDS + 0.1
"""The lease of a party that was gone for so long has expired."""


@dataclass(slots=True)
class Arrival:
    """One call of ``wait`` that arrived."""

    client: str
    generation: int
    began: float
    ended: float = inf
    result: str = ""


@dataclass(slots=True)
class History:
    """The results of the parties."""

    arrivals: dict[int, list[Arrival]] = field(default_factory=lambda: defaultdict(list))
    unknown: bool = False
    """An arrival failed, and may have been counted."""


class Party(Worker):
    """Waits for the others, again and again."""

    history: History
    arrival: Arrival | None = None

    def idle_seconds(self) -> float:
        return 0.1

    async def once(self) -> None:
        barrier = recipe.Barrier(self.client_state, "x", PARTIES, TTL_SECONDS)
        if self.one_in(5):
            await Pause(4.0)  # long enough for the lease of one that died to expire
        is_late = self.board.world.now > STOP_AT - 2.0
        timeout = 2.0 if is_late or self.one_in(3) else None
        self.arrival = None
        result = "failed"
        try:
            await recipe.wait(barrier, self.owner, timeout)
            result = "passed"
        except BrokenBarrierError:
            result = "broken"
            await Pause(self.chance.random())
            if not is_late:
                await recipe.reset(barrier)
        finally:
            if self.arrival is not None:
                self.arrival.result, self.arrival.ended = result, self.board.world.now


def run(seed: int) -> tuple[Run, History]:
    history = History()
    party = type("Party", (Party,), {"history": history})
    world = World(f"barrier/{seed}")
    shape = world.stream("shape")

    def clock(beginning: float) -> Clock:
        return Clock(beginning, 1 + shape.uniform(-DRIFT, DRIFT))

    world.node = Node(world, "node", clock(shape.uniform(100, 1e6)), clock(0.0))
    store = CounterStore(world)
    board = Board(world, store, ("x",), 1)
    parties: dict[str, Party] = {}

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
        worker = party(board, client, 0)
        parties[worker.owner] = worker

    genuine = recipe._arrive

    async def arrive(barrier: recipe.Barrier, lease: LeaseState) -> tuple[int, int]:
        began = world.now
        try:
            generation, index = await genuine(barrier, lease)
        except (EngineUnavailable, Interrupted):
            history.unknown = True
            raise
        worker = parties[lease.owner]
        worker.arrival = Arrival(worker.client.id, generation, began)
        history.arrivals[generation].append(worker.arrival)
        return generation, index

    world.restart = start
    for machine in range(CLIENTS):
        start(machine)
    plan = make_plan(world.stream("faults"), 1.0, KINDS)
    inject(world, plan)
    result = Run("barrier", seed, plan, world, board)
    with mock.patch.object(recipe, "_arrive", arrive):
        _play(result)
    for client in world.clients:
        client.dispose()
    return result, history


def violations(result: Run, history: History) -> list[str]:
    wrong = list(result.unfinished) + list(result.world.failures)
    crashed = {event.client: event.at for event in result.world.trace if isinstance(event, Crashed)}
    if crashed:
        history.unknown = True  # it may have arrived without learning it
    for generation, arrivals in history.arrivals.items():
        passed = [each for each in arrivals if each.result == "passed"]
        if not passed:
            continue
        if len(arrivals) > PARTIES:
            wrong.append(f"{len(arrivals)} arrived in generation {generation}")
        if len(arrivals) < PARTIES and not history.unknown:
            wrong.append(f"generation {generation} passed with {len(arrivals)} parties")
        wrong += [
            f"generation {generation} passed, and one of its parties got that it is broken"
            for each in arrivals
            if each.result == "broken"
        ]
        last = max(each.began for each in arrivals)
        for each in arrivals:
            gone = min(each.ended, crashed.get(each.client, inf))
            if gone < last - GONE_SECONDS:
                wrong.append(f"generation {generation} counted a party that was gone since {gone}, at {last}")
    return wrong


@pytest.mark.parametrize("batch", range(BATCHES))
def test_all_parties_pass_or_none(batch: int) -> None:
    passed = broken = 0
    for seed in range(batch * SCHEDULES, (batch + 1) * SCHEDULES):
        result, history = run(seed)
        assert violations(result, history) == [], f"seed {seed}"
        results = [each.result for arrivals in history.arrivals.values() for each in arrivals]
        passed, broken = passed + results.count("passed"), broken + results.count("broken")
    assert passed > 10 * SCHEDULES
    assert broken > SCHEDULES, "it was hardly ever broken: the schedules show little"


# --- mistakes -----------------------------------------------------------------------------------


def one_party_less_is_enough() -> Any:
    genuine = recipe.arrived

    def arrived(state: State, token: int) -> State:
        return genuine(state._replace(parties=state.parties - 1), token)._replace(parties=state.parties)

    return mock.patch.object(recipe, "arrived", arrived)


def nobody_looks_whether_the_others_live() -> Any:
    async def missing(barrier: recipe.Barrier, state: State, lease: LeaseState) -> bool:
        return False

    return mock.patch.object(recipe, "_missing", missing)


def what_another_stored_meanwhile_is_overwritten() -> Any:
    async def replace(barrier: recipe.Barrier, contents: cell.Contents, state: State) -> bool:
        await cell.update(barrier.cell, lambda value: recipe.encode(state))
        return True

    return mock.patch.object(recipe, "_replace", replace)


def a_broken_barrier_is_broken_for_those_that_passed() -> Any:
    genuine = recipe.outcome

    def outcome(state: State, generation: int) -> bool | None:
        return False if state.broken else genuine(state, generation)

    return mock.patch.object(recipe, "outcome", outcome)


def those_that_waited_at_a_reset_pass() -> Any:
    def begun_anew(state: State) -> State:
        return State(state.parties, state.generation + 1)

    return mock.patch.object(recipe, "begun_anew", begun_anew)


MUTANTS: Final[tuple[Callable[[], Any], ...]] = (
    one_party_less_is_enough,
    nobody_looks_whether_the_others_live,
    what_another_stored_meanwhile_is_overwritten,
    a_broken_barrier_is_broken_for_those_that_passed,
    those_that_waited_at_a_reset_pass,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_each_mistake_is_caught(mutant: Callable[[], Any]) -> None:
    for seed in range(SCHEDULES_AT_MOST):
        with mutant():
            result, history = run(seed)
        if violations(result, history):
            return
    pytest.fail(f"not seen in {SCHEDULES_AT_MOST} schedules")
