"""Elections in virtual time: leaders that work, proclaim and lose their terms, observers that follow them.

And mistakes to be caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import pytest

from holdfast.core.effects import Pause, Unlisten
from holdfast.engines.memory import GUARANTEES
from holdfast.errors import EngineUnavailable, LockLost
from holdfast.model import Leader
from holdfast.protocols import keeper, locks, records
from holdfast.protocols.client_state import CleanupTask, ClientState, LeaseState
from holdfast.recipes import election as recipe
from holdfast.recipes import names
from holdfast.rules.requests import Release, Snapshot
from simulation.plans import CLIENTS, WEIGHTS, make_plan
from simulation.schedules import DONE_SECONDS, DRIFT, IO_SECONDS, LINGER_SECONDS, Run, _play
from simulation.store import CounterStore
from simulation.tickets_schedules import KINDS as TICKETS_KINDS
from simulation.tickets_schedules import _seconds_for
from simulation.workloads import FAULTS_END, STOP_AT, Board, SimulatedLease, Worker
from simulator import Clock, Fault, Link, Node, SimulatedClient, World, inject
from simulator.faults import FORGETS
from simulator.ordered import OrderedStore, TicketsClient
from simulator.servers import Server
from simulator.trace import Began, LetGo, Moved
from support.thorough import THOROUGH

KINDS: Final = tuple(kind for kind in WEIGHTS if kind not in (*FORGETS, "clock jump"))
"""An engine that forgets elects anew, and one whose clock jumps ends terms early: then tokens decide."""

SCHEDULES: Final = 200 if THOROUGH else 25
BATCHES: Final = 5 if THOROUGH else 1
"""Each batch is a test, with a time limit of its own. A thorough run has 2000 schedules of each recipe."""
SCHEDULES_AT_MOST: Final = 200

NAME: Final = "x"
AT_LAST: Final = [Fault(STOP_AT + DONE_SECONDS + 0.5, "partition", machine, 4.0, 0.0) for machine in (1, 2)]
"""While the last leader proclaims something else, two observers cannot reach the engine."""

DELAYS: Final = frozenset({"duplicate", "slow", "node hang"})
"""A copy of a request that arrives late brings back the value that the same leader had replaced."""

WIND_DOWN_SECONDS: Final = 0.3
"""How long the work of a leader goes on after it noticed that it is losing its term."""


@dataclass(slots=True)
class Work:
    """The work of one term."""

    nonce: str
    token: int
    began: float
    ended: float | None = None


@dataclass(slots=True)
class Look:
    """One answer about the leader."""

    began: float
    ended: float
    leader: Leader | None
    by_observer: bool


@dataclass(slots=True)
class History:
    """What candidates did, and what others saw."""

    work: list[Work] = field(default_factory=list)
    relied: list[tuple[float, int]] = field(default_factory=list)
    """When a leader checked that it leads, and its token."""
    intended: dict[bytes, str] = field(default_factory=dict)
    """Every value → the candidacy that meant to proclaim it."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Candidacy → its token, where its candidate learnt of it."""
    owners: dict[str, str] = field(default_factory=dict)
    """Candidacy → its owner."""
    proclaimed: list[tuple[float, int, int]] = field(default_factory=list)
    """When a later value was stored, the token, and the number of that value in the term."""
    looks: list[Look] = field(default_factory=list)
    latest: dict[str, Leader | None] = field(default_factory=dict)
    """Client → what its observer reported last."""
    final: Leader | None = None
    """The leader that stays to the end."""


class Candidate(Worker):
    """Campaigns, works, proclaims, and gives up when its work has stopped; looks at others in between."""

    history: History

    async def once(self) -> None:
        if self.one_in(3):
            began = self.board.world.now
            found = await recipe.leader(self.client_state, names.election(NAME))
            self.history.looks.append(Look(began, self.board.world.now, found, by_observer=False))
            return
        chance, history = self.chance, self.history
        candidacy = f"{self.client.id}/{self.number}/{self.round}"
        history.owners[candidacy] = self.owner
        value = self.value(candidacy, 0)
        ttl = chance.choice((2.0, 3.0))
        election = recipe.Election(GUARANTEES, NAME, value, ttl, chance.choice((0.0, 0.5)))
        timeout = None if chance.random() < 0.6 else chance.choice((0.0, 0.3, 2.0))
        core = locks.LockCore(self.client_state, election.spec_for(timeout), SimulatedLease)
        lease = await locks.enter(core, self.who, self.owner)
        state = lease._state
        work = Work(state.nonce, state.token, self.board.world.now)
        try:
            history.tokens[candidacy] = state.token
            history.work.append(work)
            try:
                await recipe.announce(self.client_state, state, election)
                await self.lead(state, election, candidacy)
            except LockLost:
                await Pause(WIND_DOWN_SECONDS)
                raise
            finally:
                work.ended = self.board.world.now
        except BaseException as error:
            await locks.leave(core, self.who, error)
            raise
        await locks.leave(core, self.who, None)

    def value(self, candidacy: str, number: int) -> bytes:
        """Now and then one that is too long for the grant."""
        value = f"{candidacy}#{number}".encode().ljust(2000 if self.one_in(3) else 0)
        self.history.intended[value] = candidacy
        return value

    async def lead(self, state: LeaseState, election: recipe.Election, candidacy: str) -> None:
        history, world = self.history, self.board.world
        for number in range(1, 3 if world.now > FAULTS_END else self.chance.choice((2, 3, 6, 12))):
            locks.check(state, self.client_state.now())
            history.relied.append((world.now, state.token))
            if self.one_in(3):
                await recipe.proclaim(self.client_state, state, election, self.value(candidacy, number))
                history.proclaimed.append((world.now, state.token, number))
            await Pause(self.chance.uniform(0.01, 0.4))


async def observe(client: SimulatedClient, history: History) -> None:
    """An observer in each client, from its start to the end."""
    observation = recipe.Observation(client.client_state, names.election(NAME))
    while True:
        began = client.world.now
        try:
            found = await observation.next()
        except EngineUnavailable:
            await Pause(0.3)  # it has reported nothing yet
            continue
        history.latest[client.id] = found
        history.looks.append(Look(began, client.world.now, found, by_observer=True))


async def stay(client: SimulatedClient, history: History) -> None:
    """The last leader, who proclaims something else and stays."""
    election = recipe.Election(GUARANTEES, NAME, b"first", 3.0, 0.0)
    history.intended.update({b"first": "final", b"final": "final"})
    history.owners["final"] = f"{client.id}/final"
    core = locks.LockCore(client.client_state, election.spec_for(None), SimulatedLease)
    lease = await locks.enter(core, lambda: client, f"{client.id}/final")  # type: ignore[arg-type]  # of its own
    state = lease._state
    history.tokens["final"] = state.token
    await Pause(1.0)
    await recipe.proclaim(client.client_state, state, election, b"final")
    history.final = Leader(b"final", state.token, state.owner)
    await Pause(1000.0)


def begin_to_stay(world: World, history: History) -> None:
    client = world.clients[0]
    client.start(stay(client, history), "final")


def run(seed: int, on_tickets: bool = False) -> tuple[Run, History]:
    history = History()
    candidate = type("Candidate", (Candidate,), {"history": history})
    world = World(f"election/{seed}")
    shape = world.stream("shape")

    def clock(beginning: float) -> Clock:
        return Clock(beginning, 1 + shape.uniform(-DRIFT, DRIFT))

    server = OrderedStore if on_tickets else Node
    world.node = server(world, "node", clock(shape.uniform(100, 1e6)), clock(0.0))
    store = CounterStore(world)
    board = Board(world, store, (NAME,), 1)

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
            candidate(board, client, number)
        client.start(observe(client, history), "observer")

    world.restart = start
    for machine in range(CLIENTS):
        start(machine)
    plan = make_plan(world.stream("faults"), 2.0, TICKETS_KINDS if on_tickets else KINDS)
    inject(world, [*plan, *AT_LAST])
    world.at(STOP_AT + DONE_SECONDS, begin_to_stay, world, history)
    result = Run("election", seed, plan, world, board)
    _play(result)
    for client in world.clients:
        client.dispose()
    return result, history


# --- what must hold -----------------------------------------------------------------------------


def violations(result: Run, history: History) -> list[str]:
    return [
        *result.unfinished,
        *result.world.failures,
        *two_at_once(history),
        *released_at_work(result, history),
        *shown_wrongly(result, history),
        *missed(result, history),
    ]


def two_at_once(history: History) -> list[str]:
    """Nobody relies on its term after a later leader has relied on its own."""
    wrong, newest = [], 0
    for at, token in sorted(history.relied):
        if token < newest:
            wrong.append(f"at {at:.3f} the leader of term {token} works beside that of term {newest}")
        newest = max(newest, token)
    return wrong


def released_at_work(result: Run, history: History) -> list[str]:
    """No term is given up before its work has stopped, unless its lease has run out."""
    at_work = {work.nonce: work for work in history.work}
    deadlines: dict[str, float] = {}
    wrong = []
    for event in result.world.trace:
        if isinstance(event, Began):
            deadlines[event.state.nonce] = event.deadline
        elif isinstance(event, Moved):
            deadlines[event.nonce] = event.deadline
        elif isinstance(event, LetGo) and event.nonce in at_work:
            work = at_work[event.nonce]
            ended = event.at if work.ended is None else work.ended
            if work.began <= event.at < min(ended, deadlines[event.nonce]):
                wrong.append(
                    f"at {event.at:.3f} term {work.token} was given up ({event.how}) during its work"
                )
    return wrong


def shown_wrongly(result: Run, history: History) -> list[str]:
    """Each value is shown with the term of its leader, and not after that leader proclaimed a later one."""
    wrong = []
    delays = any(fault.kind in DELAYS for fault in result.plan)
    for look in sorted(history.looks, key=lambda each: each.ended):
        found = look.leader
        if found is None:
            continue
        candidacy = history.intended.get(found.value)
        if candidacy is None:
            wrong.append(f"at {look.ended:.3f} {found} was shown, which nobody proclaims")
        elif not _is_term_of(history, candidacy, found):
            wrong.append(f"at {look.ended:.3f} {found} was shown, whose value is that of {candidacy}")
        if look.by_observer or delays:
            continue
        number = int(found.value.rpartition(b"#")[2] or 0)
        after = max(
            (n for at, token, n in history.proclaimed if token == found.token and at < look.began), default=0
        )
        if number < after:
            wrong.append(f"at {look.ended:.3f} {found} was shown, after it had proclaimed value {after}")
    return wrong


def _is_term_of(history: History, candidacy: str, found: Leader) -> bool:
    """Of one campaign, a grant may have ended before its candidate learnt of it, and another one followed."""
    token = history.tokens.get(candidacy, found.token)
    owner = history.owners[candidacy]
    return found.owner == owner and (found.token == token or (found.token < token and b"#0" in found.value))


def missed(result: Run, history: History) -> list[str]:
    """Every observer knows the leader that stays."""
    if history.final is None:
        return ["the last leader was never elected"]
    return [
        f"the observer of {client.id} saw {history.latest.get(client.id)} last, not {history.final}"
        for client in result.world.clients
        if history.latest.get(client.id) != history.final
    ]


@pytest.mark.parametrize("batch", range(BATCHES))
@pytest.mark.parametrize("on_tickets", [False, True], ids=["records", "tickets"])
def test_elections_hold_what_they_promise(on_tickets: bool, batch: int) -> None:
    terms = looks = 0
    for seed in range(batch * SCHEDULES, (batch + 1) * SCHEDULES):
        result, history = run(seed, on_tickets)
        assert violations(result, history) == [], f"seed {seed}"
        terms += len(history.work)
        looks += len(history.looks)
    assert terms > 10 * SCHEDULES
    assert looks > 50 * SCHEDULES


# --- mistakes -----------------------------------------------------------------------------------


def a_leader_that_never_notices_its_loss() -> Any:
    return mock.patch.object(LeaseState, "loss", return_value=None)


def a_term_that_is_given_up_at_the_first_sign_of_its_loss() -> Any:
    checked = keeper._check_deadline

    async def check(client_state: ClientState, state: LeaseState, now: float) -> None:
        await checked(client_state, state, now)
        if state.reason is not None and now < state.deadline:
            release = Release(state.nonce, client_state.linger)
            client_state.queue_cleanup(CleanupTask(state.name, release, "early", give_up_at=state.deadline))

    return mock.patch.object(keeper, "_check_deadline", check)


def a_value_that_is_shown_under_any_leader() -> Any:
    shown = recipe.leader_of

    def leader_of(snapshot: Snapshot) -> Leader | None:
        found, stored = shown(snapshot), snapshot.record.value
        return (
            found
            if found is None or stored is None
            else found.__class__(stored.data, found.token, found.owner)
        )

    return mock.patch.object(recipe, "leader_of", leader_of)


def a_leader_that_is_shown_before_its_value() -> Any:
    return mock.patch.object(recipe, "_value_in", lambda metadata: metadata.get("value", "").encode())


def an_observer_that_looks_at_terms_alone() -> Any:
    class Coarse(recipe.Observation):
        __slots__ = ()

        async def next(self) -> Leader | None:
            before = self.reported
            while True:
                found = await super().next()
                if before is None or found is None or found.token != before.token:
                    return found

    return mock.patch.object(recipe, "Observation", Coarse)


def an_observer_that_takes_what_it_missed_for_seen() -> Any:
    class Hasty(recipe.Observation):
        __slots__ = ()

        async def _read(self) -> Snapshot:
            is_new = not self.nonce and self.has_reported
            seen = await super()._read()
            if is_new:
                self.reported = recipe.leader_of(seen)
            return seen

    return mock.patch.object(recipe, "Observation", Hasty)


def an_observer_that_asks_once() -> Any:
    async def next_change(client_state: ClientState, name: str, nonce: str, *rest: Any) -> Snapshot | None:
        await Pause(1e6)
        await Unlisten(nonce)
        return None

    return mock.patch.object(records, "next_change", next_change)


MUTANTS: Final[tuple[Callable[[], Any], ...]] = (
    a_leader_that_never_notices_its_loss,
    a_term_that_is_given_up_at_the_first_sign_of_its_loss,
    a_value_that_is_shown_under_any_leader,
    a_leader_that_is_shown_before_its_value,
    an_observer_that_looks_at_terms_alone,
    an_observer_that_takes_what_it_missed_for_seen,
    an_observer_that_asks_once,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.__name__))
def test_each_mistake_is_caught(mutant: Callable[[], Any]) -> None:
    for seed in range(SCHEDULES_AT_MOST):
        with mutant():
            result, history = run(seed)
        if violations(result, history):
            return
    pytest.fail(f"not seen in {SCHEDULES_AT_MOST} schedules")
