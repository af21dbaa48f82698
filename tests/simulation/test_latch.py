"""Latches in virtual time: those that count down lose replies and crash; and mistakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import pytest

from holdfast.core.effects import Pause
from holdfast.protocols.records import retry
from holdfast.recipes import cell
from holdfast.recipes import latch as recipe
from holdfast.rules.record import Record
from holdfast.rules.requests import CellState, Reply
from simulation.plans import CLIENTS, WEIGHTS, make_plan
from simulation.schedules import DRIFT, IO_SECONDS, LINGER_SECONDS, STOP_AT, Run, _play
from simulation.store import CounterStore
from simulation.workloads import Board, Worker
from simulator import Clock, Link, Node, SimulatedClient, World, inject
from simulator.faults import FORGETS
from simulator.servers import Server
from support.thorough import THOROUGH

KINDS: Final = tuple(kind for kind in WEIGHTS if kind not in FORGETS)

SCHEDULES: Final = 200 if THOROUGH else 25
BATCHES: Final = 10 if THOROUGH else 1
"""Each batch is a test, with a time limit of its own. A thorough run has 2000 schedules of each recipe."""
SCHEDULES_AT_MOST: Final = 200

COUNTS: Final = (40, 10_000)
"""Those that wait pass in the schedules with the first; with the second the count is never zero."""


@dataclass(slots=True)
class History:
    """The results of the workers."""

    count: int
    begun: int = 0
    counted: int = 0
    passed: int = 0
    early: str = ""
    """A waiter passed before enough parties had begun to count down."""


class Counting(Worker):
    """Counts down, or waits."""

    history: History

    async def once(self) -> None:
        latch, history = recipe.Latch(self.client_state, "x", self.history.count), self.history
        if self.board.world.now > STOP_AT - 3.0 or self.one_in(4):
            if await recipe.wait(latch, 1.0):
                history.passed += 1
                if history.begun < history.count:
                    history.early = f"passed when {history.begun} of {history.count} had begun to count"
            return
        for _ in range(self.chance.choice((1, 5, 20))):
            await Pause(self.chance.random() * 0.05)
            history.begun += 1
            await recipe.count_down(latch, 1)
            history.counted += 1


def run(seed: int) -> tuple[Run, History]:
    history = History(COUNTS[seed % 2])
    worker = type("Counting", (Counting,), {"history": history})
    world = World(f"latch/{seed}")
    shape = world.stream("shape")

    def clock(beginning: float) -> Clock:
        return Clock(beginning, 1 + shape.uniform(-DRIFT, DRIFT))

    world.node = Node(world, "node", clock(shape.uniform(100, 1e6)), clock(0.0))
    store = CounterStore(world)
    board = Board(world, store, ("x",), 1)

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
        worker(board, client, 0)

    world.restart = start
    for machine in range(CLIENTS):
        start(machine)
    plan = make_plan(world.stream("faults"), 2.0, KINDS)
    inject(world, plan)
    result = Run("latch", seed, plan, world, board)
    _play(result)
    for client in world.clients:
        client.dispose()
    return result, history


def violations(result: Run, history: History) -> list[str]:
    """Every count that was confirmed is counted, and none twice."""
    begun, counted, count = history.begun, history.counted, history.count
    wrong = [*result.unfinished, *result.world.failures, *filter(None, [history.early])]
    value = result.world.node.records.get("_holdfast/latch:x", Record()).value
    data = None if value is None else cell.decode(value.token, value.data).data
    left = count if data is None else int(data.split()[1])
    if not max(count - begun, 0) <= left <= max(count - counted, 0):
        wrong.append(f"{left} of {count} are left, after {counted} to {begun} were counted")
    if left and history.passed:
        wrong.append(f"{history.passed} passed, and {left} are left")
    return wrong


@pytest.mark.parametrize("batch", range(BATCHES))
def test_each_count_counts_once_and_nobody_passes_early(batch: int) -> None:
    passed = unknown = 0
    for seed in range(batch * SCHEDULES, (batch + 1) * SCHEDULES):
        result, history = run(seed)
        assert violations(result, history) == [], f"seed {seed}"
        passed += history.passed
        unknown += history.begun - history.counted
    assert passed > SCHEDULES
    assert unknown, "no reply was ever lost: the schedules show nothing"


# --- mistakes -----------------------------------------------------------------------------------


def read_then_write() -> Any:
    async def count_down(latch: recipe.Latch, n: int) -> int:
        left = max(await recipe.remaining(latch) - n, 0)
        await cell.update(latch.cell, lambda value: b"%d %d" % (latch.count, left))
        return left

    return mock.patch.object(recipe, "count_down", count_down)


def a_lost_reply_means_not_counted() -> Any:
    return mock.patch.object(cell, "is_applied", return_value=False)


def a_lost_reply_means_counted() -> Any:
    async def always(*arguments: Any, **more: Any) -> tuple[Reply, bool]:
        reply, unknown = await retry.retry_until_deadline(*arguments, **more)
        if unknown and isinstance(reply, CellState) and not reply.swapped:
            reply = CellState(reply.version, None, swapped=True)
        return reply, unknown

    return mock.patch.object(cell, "retry_until_deadline", always)


def one_left_is_as_good_as_none() -> Any:
    genuine = recipe._left

    def left(latch: recipe.Latch, value: bytes | None) -> int:
        found = genuine(latch, value)
        return 0 if found == 1 else found

    return mock.patch.object(recipe, "_left", left)


MUTANTS: Final[tuple[Callable[[], Any], ...]] = (
    read_then_write,
    a_lost_reply_means_not_counted,
    a_lost_reply_means_counted,
    one_left_is_as_good_as_none,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_each_mistake_is_caught(mutant: Callable[[], Any]) -> None:
    for seed in range(SCHEDULES_AT_MOST):
        with mutant():
            result, history = run(seed)
        if violations(result, history):
            return
    pytest.fail(f"not seen in {SCHEDULES_AT_MOST} schedules")
