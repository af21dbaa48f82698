"""Several locks at once in virtual time: crashes, lost replies and losses; and mistakes.

Each worker takes two or three names, some sorted and some in an order of their own, and looks at the engine
while it holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from unittest import mock

import pytest

from holdfast.core.arguments import Spec
from holdfast.core.effects import Pause
from holdfast.errors import EngineUnavailable, LockLost
from holdfast.protocols import locks, records
from holdfast.protocols.client_state import ClientState, LeaseState
from holdfast.protocols.records import several
from holdfast.recipes import multilock as recipe
from holdfast.recipes.multilock import Group
from holdfast.rules.record import Record
from simulation.plans import CLIENTS, WEIGHTS, make_plan
from simulation.schedules import DRIFT, IO_SECONDS, LINGER_SECONDS, Run, _play
from simulation.store import CounterStore
from simulation.tickets_schedules import KINDS as TICKETS_KINDS
from simulation.tickets_schedules import _seconds_for
from simulation.workloads import Board, SimulatedLease, SimulatedLeases, Worker
from simulator import Clock, Interrupted, Link, Node, SimulatedClient, World, inject
from simulator.faults import FORGETS
from simulator.ordered import OrderedStore, TicketsClient
from simulator.servers import Server
from support.thorough import THOROUGH

KINDS: Final = tuple(kind for kind in WEIGHTS if kind not in (*FORGETS, "clock jump"))
"""An engine that forgets its records forgets who holds them; other tests show that."""

SCHEDULES: Final = 200 if THOROUGH else 25
BATCHES: Final = 5 if THOROUGH else 1
"""Each batch is a test, with a time limit of its own. A thorough run has 2000 schedules of each recipe."""
SCHEDULES_AT_MOST: Final = 200

NAMES: Final = ("a", "b", "c")


@dataclass(slots=True)
class History:
    """What the workers saw."""

    groups: int = 0
    waits: int = 0
    losses: int = 0
    wrong: list[str] = field(default_factory=list)
    inside: dict[str, tuple[object, Group]] = field(default_factory=dict)
    """Name → the worker in whose body it is held, as far as that worker can tell."""


class Transferring(Worker):
    """Takes several names at once, again and again."""

    history: History

    async def once(self) -> None:
        chance = self.chance
        names = chance.sample(NAMES, chance.choice((2, 2, 3)))
        cores = [
            locks.LockCore(self.client_state, self.spec(name, grace=0.0, timeout=None), SimulatedLease)
            for name in names
        ]
        order: recipe.Order = "given" if chance.random() < 0.3 else "sorted"
        timeout = None if chance.random() < 0.7 else chance.choice((0.0, 0.2, 1.0))
        spec: Spec = self.spec(names[0], timeout=timeout)
        core = recipe.MultiCore(self.client_state, spec, cores, order, SimulatedLeases)
        leases = await recipe.acquire(core, self.who, self.owner, timeout)
        if leases is None:
            self.history.waits += 1
            return
        group = leases._state
        self.history.groups += 1
        error: BaseException | None = None
        try:
            await self.body_of(group, set(names))
        except BaseException as raised:
            error = raised
        for name, (who, _) in list(self.history.inside.items()):
            if who is self.task:
                del self.history.inside[name]
        core.entries[-1].entered = True  # as ``with`` does
        await self.let_go(core, error)

    async def body_of(self, group: Group, names: set[str]) -> None:
        wrong, now = self.history.wrong, self.board.world.now
        if {state.name for state in group.states} != names:
            wrong.append(f"{now}: {sorted(names)} were asked for, {group.states} were granted")
        if not self.relied_on(group):
            wrong.append(f"{now}: granted when one was lost already: {group.states}")
            return
        for name in names:
            other = self.history.inside.get(name)
            if other is not None and self.relied_on(other[1]):
                wrong.append(f"{now}: two workers hold {name} at the same time")
            self.history.inside[name] = self.task, group
        await Pause(self.hold_seconds())
        if self.relied_on(group):
            for state in group.states:
                if state.nonce not in holders_in(self.board.world, state.name):
                    wrong.append(f"{self.board.world.now}: {state.name} is relied on, and not held")
        else:
            self.history.losses += 1
            await Pause(1.0)  # the loss is reported within this time
            if [state for state in group.latest() if state.ended is None and state.reason is None]:
                wrong.append(f"{self.board.world.now}: one is lost and another is not: {group.states}")

    def relied_on(self, group: Group) -> bool:
        try:
            recipe.check(group, group.client_state.now())
        except LockLost:
            return False
        return True

    async def let_go(self, core: Any, error: BaseException | None) -> None:
        """The end of ``with``. One who is interrupted before the release began tells it again."""
        try:
            await recipe.leave(core, self.who, error)
        except Interrupted:
            self.task.cleaning = False
            if core.entries:
                await recipe.leave(core, self.who, None)
            raise
        except (LockLost, EngineUnavailable):
            self.client.note("gave up")
        if error is not None:
            raise error


def holders_in(world: World, name: str) -> list[str]:
    return [holder.nonce for holder in world.node.records.get(name, Record()).holders]


def run(seed: int, on_tickets: bool = False) -> tuple[Run, History]:
    history = History()
    worker = type("Transferring", (Transferring,), {"history": history})
    world = World(f"multilock/{seed}")
    shape = world.stream("shape")

    def clock(beginning: float) -> Clock:
        return Clock(beginning, 1 + shape.uniform(-DRIFT, DRIFT))

    clocks = clock(shape.uniform(100, 1e6)), clock(0.0)
    ways: tuple[Literal["", "silently", "by message"], ...] = ("", "silently", "by message")
    hands_over = shape.choice(ways)
    world.node = (
        OrderedStore(world, "node", *clocks)
        if on_tickets
        else Node(world, "node", *clocks, hands_over=hands_over)
    )
    store = CounterStore(world)
    board = Board(world, store, NAMES, 1)

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
            else SimulatedClient(*common, LINGER_SECONDS, throws_again=bool(machine % 2))
        )
        if machine == len(world.clients):
            world.clients.append(client)
        else:
            world.clients[machine] = client
        for number in range(2):
            worker(board, client, number)

    world.restart = start
    for machine in range(CLIENTS):
        start(machine)
    plan = make_plan(world.stream("faults"), 1.0, TICKETS_KINDS if on_tickets else KINDS)
    inject(world, plan)
    result = Run("multilock", seed, plan, world, board)
    _play(result)
    for client in world.clients:
        client.dispose()
    return result, history


def violations(result: Run, history: History) -> list[str]:
    wrong = list(result.unfinished) + history.wrong + list(result.world.failures)
    for name in NAMES:
        left = holders_in(result.world, name)
        if left:
            wrong.append(f"{name} is still held by {left}")
    return wrong


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("on_tickets", [False, True], ids=["records", "tickets"])
def test_all_or_none_and_nobody_waits_for_ever(on_tickets: bool, batch: int) -> None:
    groups = losses = waits = 0
    for seed in range(batch * SCHEDULES, (batch + 1) * SCHEDULES):
        result, history = run(seed, on_tickets)
        assert violations(result, history) == [], f"seed {seed}"
        groups, losses, waits = groups + history.groups, losses + history.losses, waits + history.waits
    assert groups > 50 * SCHEDULES
    assert losses, "nothing was ever lost: the schedules show nothing"
    assert waits, "nobody ever gave up: the schedules show nothing"


# --- mistakes -----------------------------------------------------------------------------------


def names_are_not_sorted() -> Any:
    return mock.patch.object(recipe, "sorted", lambda cores, key: cores, create=True)


def an_order_of_its_own_waits_for_ever() -> Any:
    return mock.patch.object(recipe, "PATIENCE_SECONDS", 1e6)


def what_was_taken_is_kept_when_the_rest_is_not_granted() -> Any:
    async def keep(client_state: ClientState, states: Sequence[LeaseState], retry_seconds: float) -> None:
        """Forgets them, and the keeper goes on renewing."""

    return mock.patch.object(several, "release_all", keep)


def a_loss_during_the_wait_is_overlooked() -> Any:
    def overlook(states: object) -> bool:
        return True

    return mock.patch.object(several, "all", overlook, create=True)


def the_others_survive_a_loss() -> Any:
    return mock.patch.object(Group, "lose_all")


def only_the_last_lease_is_looked_at() -> Any:
    def lost_state(self: Group, now: float) -> LeaseState | None:
        return self.states[-1] if self.states[-1].loss(now) is not None else None

    return mock.patch.object(Group, "lost_state", lost_state)


def the_first_one_alone_is_released() -> Any:
    genuine = records.release_all

    async def release(client_state: ClientState, states: Sequence[LeaseState], retry_seconds: float) -> None:
        await genuine(client_state, states[:1], retry_seconds)
        for state in states[1:]:
            state.end("released")

    return mock.patch.object(records, "release_all", release)


MUTANTS: Final[tuple[Callable[[], Any], ...]] = (
    names_are_not_sorted,
    an_order_of_its_own_waits_for_ever,
    what_was_taken_is_kept_when_the_rest_is_not_granted,
    a_loss_during_the_wait_is_overlooked,
    the_others_survive_a_loss,
    only_the_last_lease_is_looked_at,
    the_first_one_alone_is_released,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_each_mistake_is_caught(mutant: Callable[[], Any]) -> None:
    for seed in range(SCHEDULES_AT_MOST):
        with mutant():
            result, history = run(seed)
        if violations(result, history):
            return
    pytest.fail(f"not seen in {SCHEDULES_AT_MOST} schedules")
