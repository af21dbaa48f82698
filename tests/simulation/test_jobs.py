"""Jobs in virtual time: servers whose clocks differ fire one job while all kinds of things go wrong."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import pytest

from holdfast.core.arguments import Spec
from holdfast.core.effects import Pause
from holdfast.model import Run as LastRun
from holdfast.protocols import locks
from holdfast.recipes import cell as cells
from holdfast.recipes import job as recipe
from holdfast.recipes import names, schedule
from holdfast.recipes.schedule import OnCrash, Skip, Start, Terms, decide
from simulation.plans import CLIENTS, WEIGHTS, make_plan
from simulation.schedules import DRIFT, IO_SECONDS, LINGER_SECONDS, Run, _play
from simulation.store import CounterStore
from simulation.tickets_schedules import _seconds_for
from simulation.workloads import Board, Worker
from simulator import Clock, Interrupted, Link, Node, SimulatedClient, World, inject
from simulator.faults import FORGETS
from simulator.ordered import OrderedStore, TicketsClient
from simulator.servers import WALL_SECONDS, Server
from support.thorough import THOROUGH

KINDS: Final = tuple(kind for kind in WEIGHTS if kind not in FORGETS)
"""An engine that forgets does not remember the last run."""

SCHEDULES: Final = 1000 if THOROUGH else 25
"""Of each family of engines: a thorough run has 2000 of each recipe."""
SCHEDULES_AT_MOST: Final = 400

PERIOD: Final = 3.0
SKEW: Final = 0.24 * PERIOD
"""How far the clock of a server is ahead or behind: two differ by less than half a period."""


@dataclass(slots=True)
class Begun:
    """A run whose body began."""

    firing: int
    """As its server's clock counts them."""
    started: float
    due: float
    token: int
    reruns: bool
    may_be_stored: bool = False
    """Its end was sent to be stored."""
    is_stored: bool = False


@dataclass(slots=True)
class History:
    """What the servers saw."""

    on_crash: OnCrash
    runs: list[Begun] = field(default_factory=list)
    skips: list[tuple[int, Skip]] = field(default_factory=list)


class Cron(Worker):
    """A server that fires the job when its own clock says so."""

    history: History
    skews: list[float]
    has_engine_clock: bool
    terms: Terms
    workers_per_client = 1

    def idle_seconds(self) -> float:
        return 0.01

    def read_wall(self) -> float:
        return WALL_SECONDS + self.board.world.now + self.skews[self.client.machine]

    async def once(self) -> None:
        skew = self.skews[self.client.machine]
        firing = int((self.board.world.now + skew) // PERIOD) + 1
        await Pause(firing * PERIOD - skew - self.board.world.now)
        spec = self.spec(names.job("x"), timeout=0.0, ttl=2.0, max_hold=None, grace=0.0, renew=True)
        job = recipe.Job(
            self.client_state,
            recipe.JobOptions("x", self.terms, spec),
            self.read_wall,
            self.has_engine_clock,
        )
        await self.fire(job, spec, firing)

    async def fire(self, job: recipe.Job, spec: Spec, firing: int) -> None:
        """``with job:``"""
        core = self.core(spec)
        entered = await recipe.enter(job, core, self.who, self.owner)
        if isinstance(entered, Skip):
            self.history.skips.append((firing, entered))
            return
        _, began = entered
        run = began.run
        begun = Begun(firing, run.started, run.due, run.token, began.start.reruns)
        self.history.runs.append(begun)
        error: BaseException | None = None
        try:
            await Pause(self.hold_seconds())
        except Interrupted as interrupt:
            error = interrupt
        try:
            begun.may_be_stored = error is None
            begun.is_stored = await recipe.finish(job, began, error) and error is None
        except BaseException as trouble:
            error = trouble
            raise
        finally:
            await locks.leave(core, self.who, error)
        if error is not None:
            raise error


def run(seed: int, on_tickets: bool = False, on_crash: OnCrash | None = None) -> tuple[Run, History]:
    world = World(f"jobs/{seed}")
    shape = world.stream("shape")
    modes: tuple[OnCrash, OnCrash] = ("rerun", "skip")
    history = History(shape.choice(modes) if on_crash is None else on_crash)
    fields = {
        "history": history,
        "skews": [shape.uniform(-SKEW, SKEW) for _ in range(CLIENTS)],
        "has_engine_clock": not on_tickets,
        "terms": Terms(PERIOD, shape.choice((0.0, 0.3 * PERIOD)), history.on_crash),
    }
    cron = type("Cron", (Cron,), fields)

    def clock(beginning: float) -> Clock:
        return Clock(beginning, 1 + shape.uniform(-DRIFT, DRIFT))

    server = OrderedStore if on_tickets else Node
    world.node = server(world, "node", clock(shape.uniform(100, 1e6)), clock(0.0))
    store = CounterStore(world)
    board = Board(world, store, ("x",), 1)

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
        cron(board, client, 0)

    world.restart = start
    for machine in range(CLIENTS):
        start(machine)
    plan = make_plan(world.stream("faults"), 2.0, KINDS)
    inject(world, plan)
    result = Run("jobs", seed, plan, world, board)
    _play(result)
    for client in world.clients:
        client.dispose()
    return result, history


def violations(result: Run, history: History) -> list[str]:
    wrong = [*result.unfinished, *result.world.failures]
    runs = sorted(history.runs, key=lambda each: each.token)
    for before, after in itertools.pairwise(runs):
        if after.due < before.due:
            wrong.append(f"the run of {after.due} came after that of {before.due}")
        if after.due == before.due and (history.on_crash == "skip" or before.is_stored):
            wrong.append(f"the firing {after.due} ran twice, with tokens {before.token} and {after.token}")
    has_ended = {round(each.due, 3) for each in runs if each.may_be_stored}
    for _, skip in history.skips:
        if skip.reason != "not due" or history.on_crash == "skip" or skip.until is None:
            continue
        if round(skip.until - PERIOD, 3) not in has_ended:
            wrong.append(f"the firing {skip.until - PERIOD} was taken for done, and no run of it ended")
    if not result.plan:
        firings = [each.firing for each in runs]
        if len(set(firings)) != len(firings):
            wrong.append(f"without any fault a firing ran twice: {firings}")
    return wrong


@pytest.mark.parametrize("on_tickets", [False, True], ids=["records", "tickets"])
def test_each_firing_runs_once(on_tickets: bool) -> None:
    runs = crashes = 0
    for seed in range(SCHEDULES):
        result, history = run(seed, on_tickets)
        assert violations(result, history) == [], f"seed {seed}"
        runs += len(history.runs)
        crashes += sum(1 for each in history.runs if not each.is_stored)
    assert runs > 3 * SCHEDULES
    assert crashes, "no run ever crashed: the schedules show nothing"


# --- mistakes -----------------------------------------------------------------------------------


def the_beginning_is_not_stored() -> Any:
    really = cells.set_if

    async def set_if(cell: cells.Cell, version: int, data: bytes) -> int:
        return version if b'"state":"running"' in data else await really(cell, version, data)

    return mock.patch.object(cells, "set_if", set_if)


def a_crashed_run_counts() -> Any:
    return _decides(lambda last, now, terms: decide(last, now, terms._replace(on_crash="skip")))


def a_crashed_run_is_repeated() -> Any:
    return _decides(lambda last, now, terms: decide(last, now, terms._replace(on_crash="rerun")))


def an_interrupted_run_is_done() -> Any:
    return mock.patch.object(recipe, "_outcome", return_value="done")


def the_last_run_is_read_before_the_lock_is_taken() -> Any:
    """A write that names no version, on top of it: so that nothing notices."""
    really, seen = cells.read, dict[str, cells.Contents]()

    async def read(cell: cells.Cell) -> cells.Contents:
        now = await really(cell)
        return seen.setdefault(f"{cell.client_state.client} {int(cell.client_state.now())}", now)

    async def set_if(cell: cells.Cell, version: int, data: bytes) -> int:
        with mock.patch.object(cells, "read", really):
            await cells.update(cell, lambda _: data)
        return version

    return mock.patch.multiple(cells, read=read, set_if=set_if)


def a_window_that_is_too_short() -> Any:
    return mock.patch.multiple(schedule, EARLY=0.9, APART=0.1)


def _decides(rule: Callable[[LastRun | None, float, Terms], Start | Skip]) -> Any:
    return mock.patch.object(recipe, "decide", rule)


MUTANTS: Final[tuple[tuple[Callable[[], Any], OnCrash], ...]] = (
    (the_beginning_is_not_stored, "skip"),
    (a_crashed_run_counts, "rerun"),
    (a_crashed_run_is_repeated, "skip"),
    (an_interrupted_run_is_done, "rerun"),
    (the_last_run_is_read_before_the_lock_is_taken, "skip"),
    (a_window_that_is_too_short, "skip"),
)


@pytest.mark.parametrize(("mutant", "on_crash"), MUTANTS, ids=[each.__name__ for each, _ in MUTANTS])
def test_each_mistake_is_caught(mutant: Callable[[], Any], on_crash: OnCrash) -> None:
    for seed in range(SCHEDULES_AT_MOST):
        with mutant():
            result, history = run(seed, on_crash=on_crash)
        if violations(result, history):
            return
    pytest.fail(f"not seen in {SCHEDULES_AT_MOST} schedules")
