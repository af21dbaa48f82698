"""What the simulated clients do all day. One class for each scenario; what is checked is not known here.

A worker takes locks as a user does, through the shipped scripts, with chance of its own for each round: what
it intends to do in a round does not depend on what happened to it in those before. (When a round begins does,
and who takes over what another one left depends on what was left.)
"""

from __future__ import annotations

import contextlib
import random
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from holdfast.core.arguments import Spec
from holdfast.core.effects import Pause, TransientError
from holdfast.errors import EngineUnavailable, HoldfastError, LockLost, LockTimeout, NotHeld
from holdfast.fencing.rule import Mark
from holdfast.model import Kind, Mode
from holdfast.protocols import locks, records
from holdfast.protocols.client_state import LeaseState
from holdfast.recipes.multilock import Group
from simulation.store import CounterStore
from simulator import Ask, Interrupted, SimulatedClient, Task, World

__all__ = ["FAULTS_END", "SCENARIOS", "STOP_AT", "TTL_SECONDS_MAX", "Board", "Worker"]

FAULTS_END: Final = 14.0
"""Nothing new goes wrong after this."""

STOP_AT: Final = 17.0
"""Nothing new is begun after this."""

TTL_SECONDS: Final = (2.0, 3.0, 5.0)
TTL_SECONDS_MAX: Final = 5.0


@dataclass(slots=True)
class Board:
    """What the workers of one schedule share beside the locks."""

    world: World
    store: CounterStore
    names: tuple[str, ...]
    limit: int
    stop_at: float = STOP_AT
    handed_over: list[tuple[Spec, str, str]] = field(default_factory=list)
    """Exported leases that nobody has adopted yet."""


class SimulatedLease:
    """What the facades call a lease."""

    __slots__ = ("__weakref__", "_state")

    def __init__(self, state: LeaseState) -> None:
        self._state = state


class SimulatedLeases:
    """What the facades call the leases of several locks."""

    __slots__ = ("__weakref__", "_leases", "_state")

    def __init__(self, group: Group) -> None:
        self._state = group
        self._leases = [SimulatedLease(state) for state in group.states]
        for state in group.states:
            state.loss_callbacks.append(lambda: group.lost_state(group.client_state.now()))

    def values(self) -> list[SimulatedLease]:
        return self._leases


Core = locks.LockCore[SimulatedLease]


class Worker:
    """One thread or task of a client. Subclasses say what it does in ``once``."""

    kind: Kind = "lock"
    modes: tuple[Mode, ...] = ("exclusive",)
    workers_per_client = 2

    def __init__(self, board: Board, client: SimulatedClient, number: int) -> None:
        self.board = board
        self.client = client
        self.client_state = client.client_state
        self.number = number
        self.round = 0
        self.chance = self.chance_of_round()
        self.owner = f"host{client.machine}/{client.incarnation}/worker{number}"
        self.who = weakref.ref(self)
        self.writes = 0
        self.cores: dict[Spec, Core] = {}
        self.task: Task = client.start(self.run(), f"worker{number}")

    async def run(self) -> None:
        """Again and again until it is time to stop; whatever a user may run into is part of the day."""
        try:
            await Pause(self.chance.random() * 0.4)
        except Interrupted:
            self.task.cleaning = False
        while self.board.world.now < self.board.stop_at:
            self.round += 1
            self.chance = self.chance_of_round()
            try:
                await self.once_or_excused()
                await Pause(self.chance.expovariate(1 / self.idle_seconds()))
            except Interrupted:
                self.task.cleaning = False
                self.client.note("interrupted")

    async def once_or_excused(self) -> None:
        try:
            await self.once()
        except LockLost as lost:
            self.client.note("raised loss", lost.name, lost.token, lost.reason)
        except (EngineUnavailable, LockTimeout, NotHeld) as error:
            self.client.note("gave up", type(error).__name__)

    def idle_seconds(self) -> float:
        return 0.35

    async def once(self) -> None:
        raise NotImplementedError

    def chance_of_round(self) -> random.Random:
        client = self.client
        return self.board.world.stream(
            "workload", client.machine, client.incarnation, self.number, self.round
        )

    # --- choosing -------------------------------------------------------------------------------

    def one_in(self, n: int) -> bool:
        return self.chance.random() * n < 1

    def spec(self, name: str, mode: Mode | None = None, **given: Any) -> Spec:
        chance = self.chance
        fields: dict[str, Any] = {
            "ttl": chance.choice(TTL_SECONDS),
            "timeout": None if chance.random() < 0.6 else chance.choice((0.0, 0.05, 0.3, 1.0, 3.0)),
            "fair": chance.random() < 0.92,
            "renew": chance.random() < 0.9,
            "max_hold": None,
            "grace": 0.0 if chance.random() < 0.8 else 0.5,
        }
        if chance.random() < 0.08:
            fields["max_hold"] = chance.choice((0.5, 1.5, 3.0))
            fields["ttl"] = min(fields["ttl"], fields["max_hold"])
            fields["grace"] = 0.0
        fields.update(given)
        return Spec(
            name=name,
            kind=self.kind,
            mode=chance.choice(self.modes) if mode is None else mode,
            if_lost="raise",
            limit=self.board.limit if self.kind == "semaphore" else 0,
            **fields,
        )

    def core(self, spec: Spec) -> Core:
        return locks.LockCore(self.client_state, spec, SimulatedLease)

    def hold_seconds(self) -> float:
        r = self.chance.random()
        if self.board.world.now > FAULTS_END:
            return 0.02
        if r < 0.75:
            return 0.005 + 0.08 * r
        return 0.3 * r if r < 0.93 else 4.5 * self.chance.random()

    # --- the ways of holding --------------------------------------------------------------------

    async def hold(self, spec: Spec) -> None:
        """Take it and give it back, in one of the ways users do."""
        if self.chance.random() < 0.5:
            await self.enter_and_leave(spec)
        else:
            await self.acquire_and_release(spec)

    async def enter_and_leave(self, spec: Spec) -> None:
        """``with lock:``"""
        core = self.core(spec)
        lease = await locks.enter(core, self.who, self.owner)
        self.got(lease._state)
        try:
            await self.body(lease._state)
        except BaseException as error:
            self.task.cleaning = False  # leaving is a call of its own, which an interrupt ends as any other
            await locks.leave(core, self.who, error)
            raise
        await locks.leave(core, self.who, None)

    async def acquire_and_release(self, spec: Spec) -> None:
        """``acquire()``, then ``release()`` in a ``finally``."""
        core = self.core(spec)
        lease = await locks.acquire(core, self.who, self.owner, spec.timeout)
        if lease is None:
            return
        self.got(lease._state)
        try:
            await self.body(lease._state)
        finally:
            self.task.cleaning = False  # as above
            await self.release(core)

    async def release(self, core: Core) -> None:
        """A failed release can be called again, and is, even by one who was interrupted meanwhile."""
        interrupted: Interrupted | None = None
        while True:
            try:
                await locks.release(core, self.who)
                break
            except EngineUnavailable:
                self.client.note("release failed", core.spec.name)
                try:
                    await Pause(0.3)
                except Interrupted as interrupt:
                    self.task.cleaning = False
                    interrupted = interrupt
        if interrupted is not None:
            raise interrupted

    async def give_back(self, states: Sequence[LeaseState]) -> None:
        """Release leases themselves. One who is interrupted before the release began tells it again."""
        interrupted: Interrupted | None = None
        for state in states:
            for _ in range(2):
                try:
                    await locks.release_lease(self.client_state, state)
                except LockLost as lost:
                    self.client.note("raised loss", lost.name, lost.token, lost.reason)
                except EngineUnavailable:
                    await records.abandon(self.client_state, state)
                except Interrupted as interrupt:
                    self.task.cleaning = False
                    interrupted = interrupt
                if state.ended is not None:
                    break
        if interrupted is not None:
            raise interrupted

    def got(self, state: LeaseState) -> None:
        self.client.note("got", state)

    async def body(self, state: LeaseState) -> None:
        """What one does while holding: mostly, change what is protected."""
        if state.mode in ("exclusive", "write") and not self.one_in(3):
            await self.update(state)
        else:
            await Pause(self.hold_seconds())

    async def update(self, state: LeaseState) -> None:
        """A read-modify-write behind the guard. Deliberately without a look at the lease in between."""
        store, name = self.board.store, state.name
        mark = Mark(state.token, "sim", state.nonce)
        self.writes += 1
        write_id = f"{self.client.id}/{self.task.label}/{self.writes}"
        try:
            if await Ask(store, "guard advance", partial(store.advance, name, mark)):
                value = await Ask(store, "guarded read", partial(store.read, name))
                await Pause(self.hold_seconds())
                await Ask(store, "guarded write", partial(store.write, name, mark, value + 1, write_id))
        except TransientError:
            self.client.note("store unreachable")


class Locks(Worker):
    """Mutual exclusion on one or two names."""

    async def once(self) -> None:
        await self.hold(self.spec(self.chance.choice(self.board.names[:2])))


class Guarded(Worker):
    """Long read-modify-writes under short leases: what guards are for."""

    workers_per_client = 1

    async def once(self) -> None:
        name = self.board.names[0]
        await self.hold(self.spec(name, ttl=1.0, timeout=None, max_hold=None, grace=0.0, fair=True))

    def hold_seconds(self) -> float:
        seconds = self.chance.uniform(0.1, 0.7)
        return seconds if self.board.world.now < FAULTS_END else 0.02

    async def body(self, state: LeaseState) -> None:
        await self.update(state)


class Reentrant(Worker):
    """Locks taken again by those who hold them."""

    def core(self, spec: Spec) -> Core:
        return locks.ReentrantCore(self.client_state, spec, SimulatedLease)

    async def once(self) -> None:
        await self.hold(self.spec(self.board.names[0]))

    async def body(self, state: LeaseState) -> None:
        if self.one_in(2):
            spec = self.spec(state.name, "exclusive", timeout=None)
            core = self.core(spec)
            lease = await locks.acquire(core, self.who, self.owner, None)
            assert lease is not None
            if lease._state is not state:
                self.client.note("re-entry gave another lease", state.token)
            try:
                await super().body(state)
            finally:
                await self.release(core)
        else:
            await super().body(state)


class ReadersAndWriters(Worker):
    """Readers beside each other, writers alone, some of whom turn into readers."""

    kind: Kind = "rwlock"
    modes: tuple[Mode, ...] = ("read", "read", "write", "write")

    async def once(self) -> None:
        await self.hold(self.spec(self.board.names[0]))

    async def body(self, state: LeaseState) -> None:
        await super().body(state)
        if state.mode == "write" and self.one_in(2):
            reader = await locks.downgrade(self.client_state, state, lambda reader: reader)
            self.got(reader)
            try:
                await Pause(self.hold_seconds())
            finally:
                await self.give_back([reader])

    async def release(self, core: Core) -> None:
        with contextlib.suppress(NotHeld):  # it was downgraded, and the reader was given back
            await super().release(core)


class Permits(Worker):
    """A semaphore whose limit changes now and then."""

    kind: Kind = "semaphore"
    modes: tuple[Mode, ...] = ("permit",)

    async def once(self) -> None:
        name = self.board.names[0]
        if self.one_in(25):
            limit = self.chance.choice((1, self.board.limit, self.board.limit + 1))
            self.client.note("resize", name, limit)
            try:
                await records.resize(self.client_state, self.spec(name), limit)
            except HoldfastError:
                self.client.note("not resized")
        else:
            await self.hold(self.spec(name))


class Burst(Worker):
    """Very many grants at once: tokens run ahead of a clock that is too coarse."""

    kind: Kind = "semaphore"
    modes: tuple[Mode, ...] = ("permit",)
    workers_per_client = 6

    def idle_seconds(self) -> float:
        return 0.9

    async def once(self) -> None:
        # Everyone at the same moment of true time: the next full second.
        await Pause(1.0 - self.board.world.now % 1.0)
        core = self.core(self.spec(self.board.names[0], timeout=0.0, ttl=2.0, max_hold=None, grace=0.0))
        for _ in range(self.chance.choice((1, 2, 3))):
            lease = await locks.acquire(core, self.who, self.owner, 0.0)
            if lease is not None:
                self.got(lease._state)
                await self.release(core)


class Several(Worker):
    """Several names at once, in order."""

    async def once(self) -> None:
        chance = self.chance
        names = sorted(chance.sample(self.board.names, chance.choice((1, 2, 2, 3))))
        timeout = None if chance.random() < 0.6 else chance.choice((0.0, 0.2, 1.0))
        specs = tuple(self.spec(name, grace=0.0) for name in names)
        held = await records.acquire_in_order(self.client_state, specs, self.owner, timeout)
        if isinstance(held, records.NotGranted):
            return
        for state in held:
            self.got(state)
        try:
            await self.body(held[chance.randrange(len(held))])
        finally:
            await self.give_back(held)


class Tools(Worker):
    """All else one can do with a lock: values, longer leases, hand-over, breaking, watching, looking."""

    async def once(self) -> None:
        chance = self.chance
        name = chance.choice(self.board.names[:2])
        what = chance.random()
        if what < 0.06:
            await self.break_someone(name)
        elif what < 0.12:
            await self.watch(name)
        elif what < 0.16:
            await records.inspect(self.client_state, name)
        elif what < 0.18:
            await records.list_names(self.client_state, "")
        elif self.board.handed_over and what < 0.6:
            await self.adopt()
        else:
            await self.hold(self.spec(name))

    async def break_someone(self, name: str) -> None:
        """Only the grant that was seen: it may be another's by now."""
        seen = await records.inspect(self.client_state, name)
        if seen.record.holders:
            await records.break_lock(self.client_state, name, seen.record.holders[0].token, "it is Tuesday")

    async def watch(self, name: str) -> None:
        nonce, _ = await records.subscribe(self.client_state, name)
        try:
            for _ in range(self.chance.choice((1, 3))):
                await records.next_change(self.client_state, name, nonce, 0.7)
        finally:
            await records.unsubscribe(self.client_state, name, nonce)

    async def body(self, state: LeaseState) -> None:
        what = self.chance.random()
        if self.board.world.now > FAULTS_END and what >= 0.5:
            what = 1.0  # nothing any more that costs the others a ttl
        if what < 0.25:
            await locks.set_value(self.client_state, state, str(self.chance.random()).encode(), 3600.0)
        elif what < 0.5:
            await locks.extend(self.client_state, state, self.chance.choice((2.0, 4.0, 5.0)))
        elif what < 0.6:
            secret = await locks.export(self.client_state, state)
            spec = self.spec(state.name, timeout=None, grace=0.0, max_hold=None)
            self.board.handed_over.append((spec, state.nonce, secret))
            return
        elif what < 0.65:
            records.dropped(self.client_state, state)
            return
        await super().body(state)

    async def release(self, core: Core) -> None:
        with contextlib.suppress(NotHeld):  # it was exported, or dropped
            await super().release(core)

    async def adopt(self) -> None:
        spec, nonce, secret = self.board.handed_over.pop()
        state = await records.adopt(self.client_state, spec, nonce, self.owner, secret)
        self.got(state)
        try:
            await Worker.body(self, state)
        finally:
            await self.give_back([state])


SCENARIOS: Final[dict[str, type[Worker]]] = {
    "lock": Locks,
    "rwlock": ReadersAndWriters,
    "semaphore": Permits,
    "several": Several,
    "tools": Tools,
    "rlock": Reentrant,
    "guard": Guarded,
    "burst": Burst,
}


def names_for(chance: random.Random) -> tuple[str, ...]:
    """Three names; how often each is wanted is up to the workers."""
    names = ["a", "b", "c"]
    chance.shuffle(names)
    return tuple(names)
