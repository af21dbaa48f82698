"""Actors in virtual time: workers that die, stand still and lose answers, on one database; and mistakes.

What runs is what ships: the coroutines of ``holdfast.actors.aio`` and their plans, on a database of SQLite in
memory whose clock is the world's. Only what starts them (the mailroom, which needs an event loop) is a loop
of this file. A call to the database is one step of the world. It may be late, be lost on its way there or
back, or break off between any two of its statements.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import heapq
import itertools
import random
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator
from contextlib import closing, suppress
from functools import partial
from typing import Any, Final
from unittest import mock

import pytest

from holdfast import actors
from holdfast.actors import aio, messages, plans
from holdfast.errors import EngineUnavailable
from holdfast.fencing.connections import FenceTable, table_of
from holdfast.fencing.dialects import Control
from holdfast.fencing.plans import run as run_plan
from holdfast.queue import claimant
from holdfast.queue import plans as queue_plans
from holdfast.queue.aio import AsyncJob, AsyncQueue
from holdfast.queue.arguments import job_row
from holdfast.queue.calls import get_call
from holdfast.queue.database import SqliteDatabase
from holdfast.queue.migrations import migrate
from holdfast.queue.store import Call, EventClock, session_on
from holdfast.queue.store_asyncio import AsyncStore
from support.thorough import THOROUGH

SCHEDULES: Final = 100 if THOROUGH else 15
BATCHES: Final = 20 if THOROUGH else 1
"""Each batch is a test, with a time limit of its own."""
SCHEDULES_AT_MOST: Final = 40

KEYS: Final = ("a", "b", "c")
WORKERS: Final = 3
LANES: Final = 2
"""Messages that a worker handles at once."""
SENDERS: Final = 2
NUMBERS: Final = 8
"""Messages of each sender."""
AT_FIRST: Final = 1000
LEASE_SECONDS: Final = 1.0
FAULTS_UNTIL: Final = 12.0
ENDS_AT: Final = 200.0
IO_SECONDS: Final = 0.5


class Request:
    """Awaited by the store: a call to the database."""

    def __init__(self, call: Call[Any]) -> None:
        self.call = call

    def __await__(self) -> Generator[Request, Any, Any]:
        return (yield self)


class Sleep:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __await__(self) -> Generator[Sleep, Any, Any]:
        return (yield self)


async def sleep(seconds: float) -> None:
    await Sleep(seconds)


class SimulatedStore(AsyncStore):
    """Its calls are answered by the world."""

    def __init__(self, database: SqliteDatabase, namespace: str = "sim") -> None:
        super().__init__(database, namespace)
        self.events = self.removals = EventClock(0.0)

    def sibling(self, namespace: str) -> AsyncStore:
        return SimulatedStore(self.database, namespace)  # type: ignore[arg-type]  # as it was given

    async def run_own(self, call: Call[Any]) -> Any:
        return await Request(call)

    async def install_if_needed(self) -> None: ...
    async def install(self) -> bool:
        return False

    async def wait(self, timeout: float) -> bool:
        raise NotImplementedError

    async def close(self) -> None: ...
    def connection(self) -> Any:
        raise NotImplementedError


class Process:
    """Something that lives, stands still and dies, with all its coroutines."""

    def __init__(self, world: World, is_mortal: bool = True) -> None:
        self.world = world
        self.is_mortal = is_mortal
        self.is_alive = True
        self.paused_until = 0.0
        store = SimulatedStore(world.database)
        self.queue = AsyncQueue(store, None)
        self.system = aio.AsyncSystem(None, self.queue, lease=LEASE_SECONDS)
        self.system.actor("account", attempts=1000, backoff=0.02)(world.account)
        self.jobs: dict[int, AsyncJob] = {}

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        context = contextvars.copy_context()  # as each task has
        self.world.at_the_end.append(lambda: context.run(coroutine.close))
        self.world.later(0.0, lambda: self.step(coroutine, context, lambda: coroutine.send(None)))

    def step(
        self, coroutine: Coroutine[Any, Any, None], context: contextvars.Context, go_on: Callable[[], Any]
    ) -> None:
        if not self.is_alive:
            return
        if self.paused_until > self.world.now:
            self.world.at(self.paused_until, lambda: self.step(coroutine, context, go_on))
            return
        try:
            asked = context.run(go_on)
        except StopIteration:
            return
        if isinstance(asked, Sleep):
            self.world.later(
                asked.seconds, lambda: self.step(coroutine, context, lambda: coroutine.send(None))
            )
        else:
            self.world.ask(asked.call, lambda found: self.step(coroutine, context, lambda: found(coroutine)))

    # --- what a worker does: the mailroom of ``aio``, without tasks

    async def lane(self) -> None:
        kinds = self.system._job_kinds()
        while True:
            try:
                jobs = await self.queue._claim(kinds, 1, LEASE_SECONDS)  # ``claim`` needs an event loop
            except EngineUnavailable:
                jobs = []
            if not jobs:
                await sleep(0.05)
            for job in jobs:
                self.jobs[job.id] = job
                try:
                    await self.system._handle(job)
                except EngineUnavailable:
                    pass  # it is left until its lease ends
                finally:
                    self.jobs.pop(job.id, None)

    async def heart(self) -> None:
        while True:
            await sleep(LEASE_SECONDS / 3)
            with suppress(EngineUnavailable):
                await self.queue.extend_many(list(self.jobs.values()))


Reply = Callable[[Coroutine[Any, Any, None]], Any]
"""Sends the answer to a coroutine, or throws."""


class World:
    def __init__(self, seed: int, connection: sqlite3.Connection) -> None:
        self.chance = random.Random(f"actors/{seed}")
        self.now = 0.0
        self.database = SqliteDatabase(":memory:", IO_SECONDS)
        self.connection = connection
        connection.create_function("julianday", 1, lambda _: 2_440_587.5 + 20_000 + self.now / 86_400)
        table = table_of(connection)
        run_plan(migrate(session_on(table, self.database, "sim", True)), table.carry_out)
        self.account = account_class(self)
        self.wrong: list[str] = []
        self.senders_left = SENDERS
        self.faults = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.workers: list[Process] = []
        self.at_the_end: list[Callable[[], None]] = []

    def at(self, moment: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (max(moment, self.now), next(self._numbers), act))

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.now + seconds, act)

    def run(self) -> None:
        for number in range(WORKERS):
            self.workers.append(self.new_worker())
            self.at(self.chance.uniform(0.2, 2.0), partial(self.harm, number))
        for number in range(SENDERS):
            sender = Process(self, is_mortal=False)
            sender.start(send(sender, number))
        while self._agenda and not self.is_over():
            moment, _, act = heapq.heappop(self._agenda)
            self.now = moment
            if moment > ENDS_AT:
                self.wrong.append("it never came to an end")
                return
            act()

    def is_over(self) -> bool:
        if self.senders_left:
            return False
        left = "SELECT count(*) FROM holdfast_queue_jobs WHERE ended_at IS NULL"
        return bool(self.connection.execute(left).fetchone()[0] == 0)

    def new_worker(self) -> Process:
        worker = Process(self)
        for _ in range(LANES):
            worker.start(worker.lane())
        worker.start(worker.heart())
        return worker

    # --- what goes wrong

    def harm(self, number: int) -> None:
        """Kill a worker, or have it stand still past its leases."""
        if self.now > FAULTS_UNTIL:
            return
        self.faults += 1
        worker = self.workers[number]
        if self.chance.random() < 0.4:
            worker.is_alive = False
            self.workers[number] = self.new_worker()
        else:
            worker.paused_until = self.now + self.chance.choice((0.3, 1.5, 3.0))
        self.later(self.chance.uniform(0.5, 4.0), lambda: self.harm(number))

    def ask(self, call: Call[Any], answer: Callable[[Reply], None]) -> None:
        is_calm = self.now > FAULTS_UNTIL
        fate = 1.0 if is_calm else self.chance.random()
        there, back = self.chance.uniform(0.001, 0.03), self.chance.uniform(0.001, 0.03)
        if not is_calm and self.chance.random() < 0.03:
            there += self.chance.uniform(0.5, 2.5)  # it arrives when its lease is another's

        def lost(coroutine: Coroutine[Any, Any, None]) -> Any:
            return coroutine.throw(EngineUnavailable("lost"))

        if fate < 0.04:
            self.later(there + IO_SECONDS, lambda: answer(lost))
            return

        def carry_out() -> None:
            found = self.carried_out(call, self.chance.randint(1, 12) if fate < 0.1 else None)
            if fate < 0.14:
                self.later(IO_SECONDS, lambda: answer(lost))
            else:
                self.later(back, lambda: answer(found))

        self.later(there, carry_out)

    def carried_out(self, call: Call[Any], breaks_at: int | None) -> Reply:
        table = table_of(self.connection)
        carry_out = table.carry_out if breaks_at is None else breaking(table, breaks_at)
        try:
            value = run_plan(call(session_on(table, self.database, "sim", True)), carry_out)
        except Exception as error:
            raised = error
            return lambda coroutine: coroutine.throw(raised)
        finally:
            if self.connection.in_transaction:
                self.connection.rollback()
        return lambda coroutine: coroutine.send(value)


def breaking(table: FenceTable, breaks_at: int) -> Callable[[Any], Any]:
    """The connection breaks at the n-th request, and the server rolls back."""
    count = 0

    def carry_out(request: Any) -> Any:
        nonlocal count
        count += 1
        if count < breaks_at:
            return table.carry_out(request)
        if table.in_transaction():
            table.carry_out(Control.ROLL_BACK)
        raise EngineUnavailable("the connection broke")

    return carry_out


# --- what actors and senders do -------------------------------------------------------------------


def account_class(world: World) -> type[Any]:
    class Account:
        def __init__(self) -> None:
            self.balance = AT_FIRST
            self.seen: dict[str, list[int]] = {}
            self.received = 0

        async def send(self, sender: str, number: int, to: str, amount: int, may_fail: bool) -> int:
            self.balance -= amount
            await sleep(world.chance.uniform(0.0, 0.4))
            if may_fail and world.chance.random() < 0.1:
                raise RuntimeError("by chance")
            self.seen.setdefault(sender, []).append(number)
            actors.context().tell("account", to, "receive", amount=amount)
            return number

        def receive(self, amount: int) -> None:
            self.balance += amount
            self.received += 1

    return Account


async def send(process: Process, sender: int) -> None:
    """Each message twice with one id, and again as long as it is not known that it arrived."""
    system, chance = process.system, process.world.chance
    for number in range(NUMBERS):
        key, to = chance.choice(KEYS), chance.choice(KEYS)
        is_asked = chance.random() < 0.3
        fields = {
            "sender": f"s{sender}",
            "number": number,
            "to": to,
            "amount": number + 1,
            "may_fail": not is_asked,
        }
        new = system._new_message("account", key, "send", fields, f"{sender}/{number}", is_asked)
        job = 0
        for _ in range(2):
            while True:
                try:
                    job = await system._run(system._put_call(new))
                    break
                except EngineUnavailable:
                    await sleep(0.05)
        if is_asked:
            await check_reply(process, job, key, f"s{sender}", number)
        await sleep(chance.uniform(0.0, 1.5))
    process.world.senders_left -= 1


async def check_reply(process: Process, job: int, key: str, sender: str, number: int) -> None:
    """When the reply is there, so is the state that it stands for."""
    system, world = process.system, process.world
    while True:
        with suppress(EngineUnavailable):
            row = await process.queue._store.run(get_call(job))
            if row is not None and row["state"] == "finished":
                break
        await sleep(0.05)
    while True:
        with suppress(EngineUnavailable):
            state = await system.state("account", key)
            break
        await sleep(0.05)
    if state is None or number not in state["seen"].get(sender, []):
        world.wrong.append(f"the reply to {sender}/{number} came before its state")


# --- what must hold -------------------------------------------------------------------------------


def play(seed: int) -> World:
    random.seed(seed)  # the pauses between attempts
    with (
        closing(sqlite3.connect(":memory:", isolation_level=None)) as connection,
        mock.patch.object(asyncio, "sleep", sleep),
    ):
        world = World(seed, connection)
        world.run()
        world.wrong += violations(world)
        for close in world.at_the_end:
            close()
    return world


def violations(world: World) -> list[str]:
    wrong = []
    states = states_of(world)
    money = sum(state["balance"] for state in states.values())
    if money != AT_FIRST * len(states):
        wrong.append(f"money was made or lost: {money} in {len(states)} accounts")
    everything: defaultdict[str, list[int]] = defaultdict(list)
    for key, state in states.items():
        for sender, numbers in state["seen"].items():
            everything[sender] += numbers
            if numbers != sorted(set(numbers)):
                wrong.append(f"{key} handled {numbers} of {sender}")
    wrong += [
        f"of {sender}, {sorted(everything[sender])} were handled"
        for sender in (f"s{number}" for number in range(SENDERS))
        if sorted(everything[sender]) != list(range(NUMBERS))
    ]
    if sum(state["received"] for state in states.values()) != SENDERS * NUMBERS:
        wrong.append("what was sent was not received once")
    dead = world.connection.execute("SELECT error FROM holdfast_queue_jobs WHERE state = 'dead'").fetchall()
    return wrong + [f"dead: {error}" for (error,) in dead]


def states_of(world: World) -> dict[str, Any]:
    system = Process(world).system
    found = {}
    for key in KEYS:
        _, address = system._state_address("account", key)
        table = table_of(world.connection)
        call = system._load_call(address)
        stored = run_plan(call(session_on(table, world.database, "sim", True)), table.carry_out)
        if stored.attributes is not None:
            found[key] = stored.attributes
    return found


@pytest.mark.parametrize("batch", range(BATCHES))
def test_each_message_takes_effect_once_and_in_order(batch: int) -> None:
    faults = 0
    for seed in range(batch * SCHEDULES, (batch + 1) * SCHEDULES):
        world = play(seed)
        assert world.wrong == [], f"seed {seed}"
        faults += world.faults
    assert faults > 5 * SCHEDULES


def state_outside_the_transaction(patch: pytest.MonkeyPatch) -> None:
    def commit(session: Any, job: Any, address: Any, outcome: Any) -> Any:
        yield from queue_plans.atomically(session, plans.save(session, address, outcome))
        rest = dataclasses.replace(outcome, state=None)
        return (yield from queue_plans.atomically(session, plans._commit(session, job, address, rest)))

    patch.setattr(plans, "commit", commit)


def messages_outside_the_transaction(patch: pytest.MonkeyPatch) -> None:
    def commit(session: Any, job: Any, address: Any, outcome: Any) -> Any:
        for message in outcome.messages:
            yield from plans.put(session, message)
        rest = dataclasses.replace(outcome, messages=())
        return (yield from queue_plans.atomically(session, plans._commit(session, job, address, rest)))

    patch.setattr(plans, "commit", commit)


def messages_after_the_transaction(patch: pytest.MonkeyPatch) -> None:
    """Where the answer to the commit is lost, nobody sends them."""
    shipped = plans.commit

    def commit(session: Any, job: Any, address: Any, outcome: Any) -> Any:
        rest = dataclasses.replace(outcome, messages=())
        done = yield from shipped(session, job, address, rest)
        for message in outcome.messages[: job.id % 2]:
            yield from plans.put(session, message)
        return done

    patch.setattr(plans, "commit", commit)


def ids_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    shipped = plans._put_once
    patch.setattr(
        plans, "_put_once", lambda session, message: shipped(session, dataclasses.replace(message, id=None))
    )


def two_messages_of_a_key_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(messages, "job_row", lambda job: {**job_row(job), "asked_lane": 0})


def reply_before_commit(patch: pytest.MonkeyPatch) -> None:
    def commit(session: Any, job: Any, address: Any, outcome: Any) -> Any:
        early = dataclasses.replace(outcome, state=None, messages=())
        done = yield from queue_plans.atomically(session, plans._commit(session, job, address, early))
        yield from queue_plans.atomically(session, plans.save(session, address, outcome))
        for message in outcome.messages:
            yield from plans.put(session, message)
        return done

    patch.setattr(plans, "commit", commit)


def a_commit_whose_answer_was_lost_is_not_looked_for(patch: pytest.MonkeyPatch) -> None:
    def commit(session: Any, job: Any, address: Any, outcome: Any) -> Any:
        yield from plans._lock(session, outcome.messages, job.lane)
        yield from claimant.finish(session, job, outcome.result)
        yield from plans.save(session, address, outcome)
        for message in outcome.messages:
            yield from plans._put_once(session, message)
        return True

    patch.setattr(plans, "_commit", commit)


MUTANTS: Final = (
    a_commit_whose_answer_was_lost_is_not_looked_for,
    state_outside_the_transaction,
    messages_outside_the_transaction,
    messages_after_the_transaction,
    ids_are_not_compared,
    two_messages_of_a_key_at_once,
    reply_before_commit,
)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mistake_is_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    for seed in range(SCHEDULES_AT_MOST):
        if play(seed).wrong:
            return
    pytest.fail(f"not seen in {SCHEDULES_AT_MOST} schedules")
