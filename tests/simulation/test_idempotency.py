"""Operations that run once, in virtual time: callers that are cut short, and mistakes to be caught."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import pytest

from holdfast.core import outcomes
from holdfast.core.effects import Pause
from holdfast.errors import Conflict
from holdfast.protocols import locks
from holdfast.protocols.records import retry
from holdfast.recipes import idempotency as recipe
from holdfast.recipes import names
from holdfast.rules import transitions
from holdfast.rules.record import NEVER_US, Record, StoredValue
from holdfast.rules.requests import Done, Reply, SetValue
from simulation.plans import CLIENTS, WEIGHTS, make_plan
from simulation.schedules import DRIFT, IO_SECONDS, LINGER_SECONDS, Run, _play
from simulation.store import CounterStore
from simulation.tickets_schedules import _seconds_for
from simulation.workloads import Board, SimulatedLease, Worker
from simulator import Clock, Link, Node, SimulatedClient, World, inject
from simulator.faults import FORGETS
from simulator.ordered import OrderedStore, TicketsClient
from simulator.servers import Server
from support.thorough import THOROUGH

KINDS: Final = tuple(kind for kind in WEIGHTS if kind not in FORGETS)
"""An engine that forgets loses the results, whichever client stored them."""

SCHEDULES: Final = 200 if THOROUGH else 25
BATCHES: Final = 5 if THOROUGH else 1
"""Each batch is a test, with a time limit of its own. A thorough run has 2000 schedules of each recipe."""
SCHEDULES_AT_MOST: Final = 200

EPOCH_SECONDS: Final = 2.5
"""After this, there are new operations."""


@dataclass(slots=True)
class History:
    """The results of the callers."""

    results: list[tuple[str, str, list[str]]] = field(default_factory=list)
    """Key, payload and result; the result names the key and the payload that it is of."""
    conflicts: list[tuple[str, str]] = field(default_factory=list)
    wrong_conflicts: list[tuple[str, str]] = field(default_factory=list)
    """Nobody had asked for another payload, or this one had its result."""
    asked: set[tuple[str, str]] = field(default_factory=set)
    begun: int = 0
    replays: int = 0


class CheckedLease(SimulatedLease):
    """What an attempt needs of a lease."""

    __slots__ = ()

    @property
    def token(self) -> int:
        return self._state.token

    def check(self) -> None:
        raise NotImplementedError


class Caller(Worker):
    """Carries operations out, or gets their results."""

    history: History

    def idle_seconds(self) -> float:
        return 0.2

    async def once(self) -> None:
        chance, history = self.chance, self.history
        epoch = int(self.board.world.now / EPOCH_SECONDS)
        key: Any = chance.choice([("a", "b", epoch), ("a,b", epoch), f"a,b,{epoch}"])
        payload = chance.choice(["ten", "ten", "ten", "twelve"])
        options = recipe.OperationOptions(
            key,
            "shop",
            payload,
            keep=30 * 86_400.0,
            on_error="rerun",
            store_errors=(),
            timeout=chance.choice([0.0, 1.0, 5.0, None]),
            ttl=chance.choice([1.0, 2.0]),
        )
        work_seconds = chance.choice([0.0, 0.05, 0.5])
        has_result = any(each[:2] == (repr(key), payload) for each in history.results)
        history.asked.add((repr(key), payload))
        try:
            attempt = await recipe.enter(
                self.client_state, options.operation(), CheckedLease, self.who, self.owner
            )
        except Conflict:
            history.conflicts.append((repr(key), payload))
            other = "twelve" if payload == "ten" else "ten"
            if has_result or (repr(key), other) not in history.asked:
                history.wrong_conflicts.append((repr(key), payload))
            return
        try:
            if not attempt.done:
                history.begun += 1
                await Pause(work_seconds)
                attempt.set_result([repr(key), payload, f"{self.owner}/{self.round}"])
        except BaseException as error:
            await recipe.leave(attempt, self.who, error)
            raise
        await recipe.leave(attempt, self.who, None)
        history.replays += attempt.done
        history.results.append((repr(key), payload, attempt.result))


def run(seed: int, on_tickets: bool = False) -> tuple[Run, History]:
    history = History()
    caller = type("Caller", (Caller,), {"history": history})
    world = World(f"idempotency/{seed}")
    shape = world.stream("shape")

    def clock(beginning: float) -> Clock:
        return Clock(beginning, 1 + shape.uniform(-DRIFT, DRIFT))

    server = OrderedStore if on_tickets else Node
    world.node = server(world, "node", clock(shape.uniform(100, 1e6)), clock(0.0))
    store = CounterStore(world)
    board = Board(world, store, ("operations",), 1)

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
            caller(board, client, number)

    world.restart = start
    for machine in range(CLIENTS):
        start(machine)
    plan = make_plan(world.stream("faults"), 2.0, KINDS)
    inject(world, plan)
    result = Run("idempotency", seed, plan, world, board)
    _play(result)
    for client in world.clients:
        client.dispose()
    return result, history


def violations(result: Run, history: History) -> list[str]:
    """Every caller that gets a result gets the same one, of the operation and the payload that was asked
    for."""
    wrong = list(result.unfinished)
    first: dict[str, list[str]] = {}
    for key, payload, found in history.results:
        if found is None or found[:2] != [key, payload]:
            wrong.append(f"asked for {payload} of {key}, and got {found}")
        elif first.setdefault(key, found) != found:
            wrong.append(f"{key} has two results: {first[key]} and {found}")
    wrong += [f"{payload} of {key} was no conflict" for key, payload in history.wrong_conflicts]
    return wrong


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("on_tickets", [False, True], ids=["records", "tickets"])
def test_an_operation_has_one_result(on_tickets: bool, batch: int) -> None:
    total, found = History(), []
    for seed in range(batch * SCHEDULES, (batch + 1) * SCHEDULES):
        result, history = run(seed, on_tickets)
        assert violations(result, history) == [], f"seed {seed}"
        total.results += history.results
        found.append(history.results)
        total.conflicts += history.conflicts
        total.begun += history.begun
        total.replays += history.replays
    assert len(total.results) > 100 * SCHEDULES
    assert total.replays > 50 * SCHEDULES
    stored = {(number, key) for number, each in enumerate(found) for key, _, _ in each}
    assert total.begun > len(stored), "no attempt was ever cut short: the schedules show nothing"
    assert total.conflicts


# --- mistakes -----------------------------------------------------------------------------------


@contextlib.contextmanager
def results_are_stored_after_a_loss() -> Iterator[None]:
    """Neither the engine nor the client looks at the lease."""

    def set_value(
        record: Record, ask: SetValue, now: float, wall_us: int, admits: Any
    ) -> tuple[Record, Reply]:
        return record._replace(value=StoredValue(ask.data, record.token, NEVER_US)), Done()

    async def unchecked(client_state: Any, state: Any, data: bytes, retention: float) -> None:
        await retry.retry_until_deadline(client_state, state.name, SetValue(state.nonce, data, retention))

    with (
        mock.patch.dict(transitions._HANDLERS, {SetValue: set_value}),
        mock.patch.object(locks, "set_value", unchecked),
    ):
        yield


def the_fingerprint_is_ignored() -> Any:
    return mock.patch.object(outcomes, "check_fingerprint", return_value=None)


def an_unfinished_attempt_is_replayed() -> Any:
    """A body that was interrupted counts as one that has ended."""

    def outcome(attempt: Any, error: BaseException | None) -> Any:
        return attempt._outcome or outcomes.result_outcome(attempt._operation.fingerprint, None)

    return mock.patch.object(recipe, "_outcome", outcome)


def tuples_are_joined() -> Any:
    def joined(key: Any, what: str = "key") -> str:
        return ",".join([str(part) for part in key]) if isinstance(key, tuple) else str(key)

    return mock.patch.object(names, "key_text", joined)


def the_lock_is_taken_without_a_second_look() -> Any:
    shipped = recipe._look
    seen: dict[int, Any] = {}

    async def once(client_state: Any, operation: Any, caller: Any = None) -> Any:
        if id(operation) in seen and seen[id(operation)][0] is operation:
            return seen[id(operation)][1]
        found = await shipped(client_state, operation, caller)
        seen[id(operation)] = operation, found
        return found

    return mock.patch.object(recipe, "_look", once)


MUTANTS: Final[tuple[Callable[[], Any], ...]] = (
    results_are_stored_after_a_loss,
    the_fingerprint_is_ignored,
    an_unfinished_attempt_is_replayed,
    tuples_are_joined,
    the_lock_is_taken_without_a_second_look,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_each_mistake_is_caught(mutant: Callable[[], Any]) -> None:
    for seed in range(SCHEDULES_AT_MOST):
        with mutant():
            result, history = run(seed)
        if violations(result, history):
            return
    pytest.fail(f"not seen in {SCHEDULES_AT_MOST} schedules")
