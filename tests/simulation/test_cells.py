"""Cells in virtual time: writers that add to one number while replies are lost, and mistakes to be caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import pytest

from holdfast.errors import EngineUnavailable
from holdfast.protocols.records import retry
from holdfast.recipes import cell as recipe
from holdfast.recipes.cell import Contents, Write
from holdfast.rules import transitions
from holdfast.rules.record import NEVER_US, Record, StoredValue
from holdfast.rules.requests import CellState, Reply, SwapCell
from simulation.plans import CLIENTS, WEIGHTS, make_plan
from simulation.schedules import DRIFT, IO_SECONDS, LINGER_SECONDS, Run, _play
from simulation.store import CounterStore
from simulation.tickets_schedules import _seconds_for
from simulation.workloads import Board, Worker
from simulator import Clock, Interrupted, Link, Node, SimulatedClient, World, inject
from simulator.faults import FORGETS
from simulator.ordered import OrderedStore, TicketsClient
from simulator.servers import Server
from support.thorough import THOROUGH

KINDS: Final = tuple(kind for kind in WEIGHTS if kind not in FORGETS)
"""An engine that forgets loses the number, whichever client wrote it."""

SCHEDULES: Final = 100 if THOROUGH else 25
"""Of each of the two families of engines."""
BATCHES: Final = 10 if THOROUGH else 1
"""Each batch is a test, with a time limit of its own."""
SCHEDULES_AT_MOST: Final = 200


@dataclass(slots=True)
class History:
    """The results of the writers."""

    sums: list[tuple[float, float, int]] = field(default_factory=list)
    """When an addition began, when it returned, and the sum that it returned."""
    unknown: int = 0
    """Additions that failed, and may have been applied."""


class Adder(Worker):
    """Adds one, again and again."""

    history: History

    async def once(self) -> None:
        cell = recipe.Cell(self.client_state, "hits")
        while True:
            began = self.board.world.now
            try:
                total = await recipe.update(cell, recipe.addition("hits", 1), 5.0)
            except (EngineUnavailable, Interrupted):
                self.history.unknown += 1
                raise
            self.history.sums.append((began, self.board.world.now, int(total)))
            if self.one_in(3):
                return


def run(seed: int, on_tickets: bool = False) -> tuple[Run, History]:
    history = History()
    adder = type("Adder", (Adder,), {"history": history})
    world = World(f"cells/{seed}")
    shape = world.stream("shape")

    def clock(beginning: float) -> Clock:
        return Clock(beginning, 1 + shape.uniform(-DRIFT, DRIFT))

    server = OrderedStore if on_tickets else Node
    world.node = server(world, "node", clock(shape.uniform(100, 1e6)), clock(0.0))
    store = CounterStore(world)
    board = Board(world, store, ("hits",), 1)

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
        for number in range(2):
            adder(board, client, number)

    world.restart = start
    for machine in range(CLIENTS):
        start(machine)
    plan = make_plan(world.stream("faults"), 2.0, KINDS)
    inject(world, plan)
    result = Run("cells", seed, plan, world, board)
    _play(result)
    for client in world.clients:
        client.dispose()
    return result, history


def final_sum(world: World) -> int:
    node = world.node
    if isinstance(node, OrderedStore):
        state = node._read_cell("_holdfast/cell:hits")
    else:
        value = node.records.get("_holdfast/cell:hits", Record()).value
        state = CellState(0, None) if value is None else CellState(value.token, value.data)
    return recipe.number_of("hits", recipe.decode(state.version, state.data).data)


def violations(result: Run, history: History) -> list[str]:
    """The number is linearizable, and no addition is lost or applied twice."""
    wrong = list(result.unfinished)
    sums = history.sums
    if len({total for _, _, total in sums}) != len(sums):
        wrong.append("two additions returned the same sum")
    latest, previous = 0, iter(sorted(sums, key=lambda each: each[1]))
    ended = next(previous, None)
    for began, _, total in sorted(sums):
        while ended is not None and ended[1] < began:
            latest, ended = max(latest, ended[2]), next(previous, None)
        if total <= latest:
            wrong.append(
                f"an addition that began at {began} returned {total}, after one had returned {latest}"
            )
    final = final_sum(result.world)
    crashed = sum(1 for client in result.world.past for _ in range(2))
    if not len(sums) <= final <= len(sums) + history.unknown + crashed:
        wrong.append(f"the sum is {final}, after {len(sums)} additions and {history.unknown} unknown ones")
    return wrong


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("on_tickets", [False, True], ids=["records", "tickets"])
def test_no_addition_is_lost_or_applied_twice(on_tickets: bool, batch: int) -> None:
    additions = unknown = 0
    for seed in range(batch * SCHEDULES, (batch + 1) * SCHEDULES):
        result, history = run(seed, on_tickets)
        assert violations(result, history) == [], f"seed {seed}"
        additions += len(history.sums)
        unknown += history.unknown
    assert additions > 50 * SCHEDULES
    assert unknown, "no reply was ever lost: the schedules show nothing"


# --- mistakes -----------------------------------------------------------------------------------


def swap_without_comparing() -> Any:
    def swap(record: Record, ask: SwapCell, now: float, wall_us: int, admits: Any) -> tuple[Record, Reply]:
        version = wall_us if record.value is None else max(record.value.token + 1, wall_us)
        return record._replace(value=StoredValue(ask.data, version, NEVER_US)), CellState(version, None, True)

    return mock.patch.dict(transitions._HANDLERS, {SwapCell: swap})


def versions_that_stand_still() -> Any:
    def swap(record: Record, ask: SwapCell, now: float, wall_us: int, admits: Any) -> tuple[Record, Reply]:
        value = record.value
        if (0 if value is None else 1) != ask.expected:
            return record, CellState(1, None if value is None else value.data)
        return record._replace(value=StoredValue(ask.data, 1, NEVER_US)), CellState(1, None, True)

    return mock.patch.dict(transitions._HANDLERS, {SwapCell: swap})


def a_lost_reply_means_not_applied() -> Any:
    return mock.patch.object(recipe, "is_applied", return_value=False)


def a_lost_reply_means_applied() -> Any:
    async def always(*arguments: Any, **more: Any) -> tuple[Reply, bool]:
        reply, unknown = await retry.retry_until_deadline(*arguments, **more)
        if unknown and isinstance(reply, CellState) and not reply.swapped:
            reply = CellState(reply.version, None, swapped=True)
        return reply, unknown

    return mock.patch.object(recipe, "retry_until_deadline", always)


def a_mark_that_is_gone_was_never_there() -> Any:
    def by_mark(now: Contents, mine: Write) -> bool:
        return any(write.mark == mine.mark for write in now.writes)

    stack = mock.patch.object(recipe, "is_applied", by_mark)
    kept = mock.patch.object(recipe, "WRITES_KEPT", 1)

    class Both:
        def __enter__(self) -> None:
            stack.start()
            kept.start()

        def __exit__(self, *error: object) -> None:
            kept.stop()
            stack.stop()

    return Both()


MUTANTS: Final[tuple[Callable[[], Any], ...]] = (
    swap_without_comparing,
    versions_that_stand_still,
    a_lost_reply_means_not_applied,
    a_lost_reply_means_applied,
    a_mark_that_is_gone_was_never_there,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_each_mistake_is_caught(mutant: Callable[[], Any]) -> None:
    for seed in range(SCHEDULES_AT_MOST):
        with mutant():
            result, history = run(seed)
        if violations(result, history):
            return
    pytest.fail(f"not seen in {SCHEDULES_AT_MOST} schedules")
