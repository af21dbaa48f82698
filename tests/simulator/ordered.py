"""An ordered store with sessions, and clients of the tickets family on it.

The store implements ``TicketStore`` by a clock of its own. Its content is also written to the trace as
records, so that the checkers of records check it, too. It never forgets: it stands for a cluster that agrees
on everything.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from holdfast.core.effects import Apply, ApplyInOrder, ListNames, RenewBatch, Unlisten, Wait
from holdfast.protocols import tickets
from holdfast.protocols.tickets import TicketClient
from holdfast.protocols.tickets.store import (
    EVERYTHING,
    KeptAlive,
    OpenedSession,
    Removed,
    SessionEndedError,
    TicketStore,
)
from holdfast.rules.record import EMPTY, Record, StoredValue, Tombstone
from holdfast.rules.requests import (
    Acquire,
    Break,
    Broken,
    CellState,
    Done,
    Downgrade,
    Inspect,
    Refresh,
    Release,
    Renew,
    Reply,
    Request,
    Snapshot,
    Wake,
    Withdraw,
)
from holdfast.rules.tickets import (
    LockConfig,
    LockView,
    Ticket,
    Watched,
    blockers,
    find,
    ordered,
    record_of,
    token_at,
)

from .client import Task
from .servers import WALL_SECONDS, Node
from .trace import Changed, Copied
from .translating import Hurried, TranslatingClient

if TYPE_CHECKING:
    from .world import Clock, World

__all__ = ["OrderedStore", "TicketsClient"]

ANSWERED: Final = (
    "open_session",
    "keep_alive",
    "create",
    "create_together",
    "read_queue",
    "read_tickets",
    "remove",
    "evict",
    "list_names",
    "read_cell",
    "swap_cell",
)
"""These never return nothing."""


class Wall:
    """Reading the wall clock, as the coverage table names it."""


class StoreCall(NamedTuple):
    """A call of one of the store's methods, sent over the simulated network."""

    method: str
    arguments: tuple[Any, ...]
    more: dict[str, Any]

    def __await__(self) -> Generator[StoreCall, Any, Any]:
        return (yield self)


class RemoteStore:
    """The client's side of ``OrderedStore``: a ``TicketStore`` whose every method is one call."""

    def __init__(self, client: str) -> None:
        self._client = client

    def __getattr__(self, method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(*arguments: Any, **more: Any) -> Any:
            return await StoreCall(method, arguments, more)

        return call

    async def open_session(self, seconds: float, generation: int) -> Any:
        """The store knows sessions by names that begin with the client's."""
        return await StoreCall("open_session", (seconds, f"{self._client}/{seconds:g}/{generation}"), {})


class Place:
    """One name in the store."""

    __slots__ = ("config", "newest_token", "tickets", "value")

    def __init__(self) -> None:
        self.config: LockConfig | None = None
        self.tickets: dict[str, Ticket] = {}
        self.value: StoredValue | None = None
        self.newest_token = 0


class OrderedStore(Node):
    """Tickets in order, sessions that expire, watches."""

    def __init__(self, world: World, label: str, clock: Clock, wall: Clock) -> None:
        super().__init__(world, label, clock, wall)
        self._revision = 0
        self._places: dict[str, Place] = {}
        self._sessions: dict[str, list[float]] = {}
        """Id → how long it lasts, and until when (the store's clock)."""
        self._notes: dict[str, tuple[Tombstone, str]] = {}
        """By nonce; with the session that it hangs on, if it does."""
        self._cells: dict[str, CellState] = {}
        self._armed: dict[tuple[str, str], tuple[str, Watched, frozenset[str]]] = {}
        """(client, nonce) → name, what is watched."""

    def perform(self, op: Any) -> Any:
        if op.__class__ is not StoreCall:
            return super().perform(op)
        try:
            return getattr(self, f"_{op.method}")(*op.arguments, **op.more)
        except SessionEndedError as gone:
            return gone

    # --- what stands there ----------------------------------------------------------------------

    def _place(self, name: str) -> Place:
        return self._places.setdefault(name, Place())

    def _view(self, name: str, nonce: str = "") -> LockView:
        place = self._places.get(name)
        note = self._notes.get(nonce)
        if place is None:
            return LockView(note=note and note[0])
        return LockView(
            place.config,
            ordered(tuple(place.tickets.values())),
            place.value,
            place.newest_token,
            note and note[0],
        )

    def look(self, name: str) -> Snapshot:
        return Snapshot(self.records.get(name, EMPTY), self.now())

    def _changed(
        self, name: str, request: Request, reply: Reply, touched: frozenset[str], gone: bool
    ) -> None:
        """Tell the trace, and those who watch. ``touched``: the nonces whose tickets went or changed."""
        before = self.records.get(name, EMPTY)
        after = record_of(self._view(name), self.now())
        holders = tuple(
            [h._replace(since=0.0, expires_at=self._expiry(name, h.nonce)) for h in after.holders]
        )
        queue = tuple([w._replace(since=0.0, expires_at=self._expiry(name, w.nonce)) for w in after.queue])
        after = after._replace(
            holders=before.holders if holders == before.holders else holders,
            queue=before.queue if queue == before.queue else queue,
        )
        wakes = self._wakes(name, before, after, touched, gone)
        world = self.world
        if isinstance(reply, Broken):
            # First the holders go, with a number that is larger than theirs; then the next ones hold.
            left = tuple([holder for holder in before.holders if holder.nonce not in touched])
            between = before._replace(holders=left)
            world.trace.append(Changed(world.now, name, before, between, request, reply, ()))
            before, request, reply = between, Inspect(), Done()
        if after != before or wakes:
            world.trace.append(Changed(world.now, name, before, after, request, reply, wakes))
        self.records[name] = after
        for wake in wakes:
            self.wake(wake)

    def _expiry(self, name: str, nonce: str) -> float:
        """Of the session that carries the ticket."""
        session = self._sessions.get(self._places[name].tickets[nonce].handle[0])
        return 0.0 if session is None else session[1]

    def _wakes(
        self, name: str, before: Record, after: Record, touched: frozenset[str], gone: bool
    ) -> tuple[Wake, ...]:
        woken = []
        for (client, nonce), (place, watched, nonces) in self._armed.items():
            if place != name:
                continue
            if (
                watched == EVERYTHING
                or (nonces & touched and (gone or watched.turns))
                or (watched.limit and before.limit != after.limit)
            ):
                woken.append(Wake(client, nonce))
        return tuple(woken)

    # --- sessions -------------------------------------------------------------------------------

    def _open_session(self, seconds: float, session: str) -> OpenedSession:
        fresh = session not in self._sessions
        if fresh:
            self._begin(session, seconds)
        return OpenedSession(session, seconds, fresh)

    def _begin(self, session: str, seconds: float) -> None:
        expires_at = self.now() + seconds
        self._sessions[session] = [seconds, expires_at]
        self.world.at(self.clock.when(expires_at), self._expire, session)

    def _expire(self, session: str) -> None:
        """Its time may be over; a store that is down or hangs finds out later."""
        known = self._sessions.get(session)
        if known is None:
            return
        world = self.world
        ends_at = self.clock.when(known[1])
        if self.down:
            world.at(world.now + 0.05, self._expire, session)
        elif max(ends_at, self.hangs_until) > world.now + 1e-9:
            world.at(max(ends_at, self.hangs_until), self._expire, session)
        else:
            self._end(session)

    def _end(self, session: str) -> None:
        del self._sessions[session]
        self._notes = {n: note for n, note in self._notes.items() if note[1] != session}
        for name, place in self._places.items():
            gone = [t.nonce for t in place.tickets.values() if t.handle[0] == session]
            for nonce in gone:
                del place.tickets[nonce]
            if gone:
                self._changed(name, Inspect(), Done(), frozenset(gone), gone=True)
        client = self.world.by_id.get(session.partition("/")[0])
        if isinstance(client, TicketsClient):
            self._tell(client, client.session_over, session)

    def _tell(self, client: TicketsClient, call: Callable[[str], None], what: str) -> None:
        """A message to a client: as uncertain as any."""
        if client.alive:
            delays, _ = client.links[self].fate(False, self.world.now)
            for delay in delays:
                self.world.at(self.world.now + delay, client.heard, call, what)

    def _keep_alive(
        self, sessions: tuple[str, ...], tickets: tuple[tuple[str, Ticket], ...] = ()
    ) -> KeptAlive:
        alive = []
        touched: dict[str, None] = {}
        for session in sessions:
            known = self._sessions.get(session)
            alive.append(known is not None)
            if known is not None:
                known[1] = self.now() + known[0]
                for name, place in self._places.items():
                    if any(t.handle[0] == session for t in place.tickets.values()):
                        touched[name] = None
        for name in touched:
            self._changed(name, Inspect(), Done(), frozenset(), gone=False)
        there = tuple([t.nonce in self._place(name).tickets for name, t in tickets])
        return KeptAlive(tuple(alive), there)

    def _lives(self, session: str) -> None:
        if session not in self._sessions:
            raise SessionEndedError

    # --- tickets --------------------------------------------------------------------------------

    def _create(
        self,
        name: str,
        ticket: Ticket,
        session: str,
        asked: LockConfig | None,
        declared: int,
        alone: bool,
    ) -> LockView:
        self._lives(session)
        place = self._place(name)
        if self._fits(name, ticket, asked, declared, alone):
            if place.config is None:
                place.config = LockConfig(ticket.kind, declared, declared)
            self._put(name, ticket, session)
            request = Acquire(
                ticket.nonce,
                ticket.client,
                ticket.owner,
                ticket.kind,
                ticket.mode,
                ticket.ttl,
                not alone,
            )
            self._changed(name, request, Done(), frozenset({ticket.nonce}), gone=False)
        return self._view(name, ticket.nonce)

    def _fits(self, name: str, ticket: Ticket, asked: LockConfig | None, declared: int, alone: bool) -> bool:
        place = self._place(name)
        config = place.config
        if asked is None or config is None:
            fits = asked is config
        else:
            fits = (asked.kind, asked.declared) == (config.kind, config.declared)
        if fits and alone and ticket.kind != "semaphore":
            last = ticket._replace(order=self._revision + 1)
            fits = not blockers(
                self._view(name).tickets,
                last,
                config or LockConfig(ticket.kind, declared, declared),
            )
        return fits and ticket.nonce not in place.tickets and ticket.nonce not in self._notes

    def _create_together(
        self, wanted: tuple[tuple[str, Ticket, LockConfig | None], ...], session: str
    ) -> tuple[LockView, ...] | None:
        self._lives(session)
        if all(self._fits(name, ticket, asked, 0, alone=True) for name, ticket, asked in wanted):
            for name, ticket, asked in wanted:
                self._create(name, ticket, session, asked, 0, alone=True)
        return tuple([self._view(name, ticket.nonce) for name, ticket, _ in wanted])

    def _put(self, name: str, ticket: Ticket, session: str) -> Ticket:
        self._revision += 1
        if not ticket.order:
            ticket = ticket._replace(order=self._revision, token=token_at(self._revision))
        ticket = ticket._replace(handle=(session, self._revision), session=session)
        place = self._place(name)
        place.tickets[ticket.nonce] = ticket
        place.newest_token = max(place.newest_token, ticket.token)
        return ticket

    def _read_queue(
        self, name: str, nonce: str = "", kind: str = "", order: int = 0, behind: Ticket | None = None
    ) -> LockView:
        view = self._view(name, nonce)
        if behind is not None:
            there = find(view.tickets, behind.nonce)
            if there is not None and there.order == behind.order:
                return view._replace(
                    tickets=tuple([t for t in view.tickets if t is there or t.nonce == nonce])
                )
        return view

    def _read_tickets(self, name: str, tickets: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
        return tickets

    def _remove(
        self, name: str, nonce: str, mode: str, order: int = 0, tombstone_session: str | None = None
    ) -> Removed:
        if tombstone_session is not None:
            self._lives(tombstone_session)
        place = self._place(name)
        ticket = place.tickets.get(nonce)
        note = self._notes.get(nonce)
        if tombstone_session is not None and note is None:
            self._notes[nonce] = Tombstone(nonce, "withdrawn", "", 0.0), tombstone_session
        if ticket is None or (order and ticket.order != order):
            return Removed(False, note[0] if note is not None and note[0].reason == "broken" else None)
        self._revision += 1
        del place.tickets[nonce]
        # One that is tried and taken back may be tried again.
        request: Request = Refresh(nonce) if order else Release(nonce)
        self._changed(name, request, Done(), frozenset({nonce}), gone=True)
        return Removed(True)

    def _evict(self, name: str, tickets: tuple[Ticket, ...], reason: str) -> tuple[str, ...]:
        place = self._place(name)
        evicted = [t for t in tickets if t.nonce in place.tickets]
        told = tuple([h for h in self.records[name].holders if find(evicted, h.nonce)]) if evicted else ()
        for ticket in evicted:
            self._revision += 1
            del place.tickets[ticket.nonce]
            self._notes[ticket.nonce] = Tombstone(ticket.nonce, "broken", reason, 0.0), ""
            client = self.world.by_id.get(ticket.client)
            if isinstance(client, TicketsClient):
                self._tell(client, client.ended, ticket.nonce)
        if evicted:
            reply = Broken(max(t.token for t in evicted) + 1, told)
            nonces = frozenset([t.nonce for t in evicted])
            self._changed(name, Break(None, reason), reply, nonces, gone=True)
        return tuple([t.nonce for t in evicted])

    def _read_note(self, nonce: str) -> Tombstone | None:
        note = self._notes.get(nonce)
        return note[0] if note is not None and note[0].reason != "withdrawn" else None

    def _exchange(self, name: str, old: Ticket, new: Ticket, session: str) -> None:
        self._lives(session)
        place = self._place(name)
        if old.nonce not in place.tickets or new.nonce in self._notes:
            return
        del place.tickets[old.nonce]
        self._put(name, new, session)
        request = Downgrade(old.nonce, new.nonce)
        self._changed(name, request, Done(), frozenset({old.nonce}), gone=True)

    def _detach(self, name: str, ticket: Ticket, seconds: float) -> bool:
        session = f"detached/{self._revision}"
        if not self._is_as(name, ticket):
            return False
        self._begin(session, seconds)
        self._put(name, ticket, session)
        self._changed(name, Inspect(), Done(), frozenset({ticket.nonce}), gone=False)
        return True

    def _attach(self, name: str, ticket: Ticket, session: str) -> Ticket | None:
        self._lives(session)
        if not self._is_as(name, ticket):
            return None
        ticket = self._put(name, ticket, session)
        request = Renew(ticket.nonce, ticket.ttl)
        self._changed(name, request, Done(), frozenset({ticket.nonce}), gone=False)
        return ticket

    def _is_as(self, name: str, ticket: Ticket) -> bool:
        """Nobody has changed it since it was read."""
        known = self._place(name).tickets.get(ticket.nonce)
        return known is not None and known.handle == ticket.handle

    # --- beside the tickets ---------------------------------------------------------------------

    def _set_value(self, name: str, ticket: Ticket, value: StoredValue, retention: float) -> bool:
        place = self._place(name)
        if ticket.nonce not in place.tickets:
            return False
        place.value = value
        self._changed(name, Inspect(), Done(), frozenset(), gone=False)
        return True

    def _read_cell(self, name: str) -> CellState:
        return self._cells.get(name, CellState(0, None))

    def _swap_cell(self, name: str, expected: int, data: bytes) -> CellState:
        before = self._read_cell(name)
        if before.version != expected:
            return before
        self._cells[name] = CellState(expected + 1, data)
        return CellState(expected + 1, None, swapped=True)

    def _set_config(self, name: str, seen: LockConfig | None, config: LockConfig) -> LockView | None:
        place = self._place(name)
        if place.config != seen:
            return None
        place.config = config
        self._changed(name, Inspect(), Done(), frozenset(), gone=False)
        return self._view(name)

    def _list_names(self, prefix: str) -> list[tuple[str, LockView]]:
        return [(name, self._view(name)) for name in sorted(self._places) if name.startswith(prefix)]

    def _watch(self, nonce: str, name: str, watched: Watched, tickets: tuple[Ticket, ...] = ()) -> None:
        client = nonce.partition("-")[0]
        self._armed[client, nonce] = name, watched, frozenset(watched.nonces)

    def disarm(self, client: str, nonce: str) -> None:
        self._armed.pop((client, nonce), None)


class TicketsClient(TranslatingClient):
    """A client whose requests are translated before they are sent."""

    def __init__(
        self, *arguments: Any, wall: Clock, seconds_for: Callable[[float], float], **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self.wall = wall
        self.tickets = TicketClient(self.id, seconds_for, self._tell_time_at_once, self._read_wall)
        self.tickets.store = cast(TicketStore, RemoteStore(self.id))
        self._acts[StoreCall] = self._send
        self._at_once[Unlisten] = self._unlisten

    async def _answer(self, op: Any) -> Any:
        if op.__class__ is Apply:
            self.note_what_is_let_go(op)
            return await tickets.apply(self.tickets, op.name, op.request)
        if op.__class__ is RenewBatch:
            return await tickets.renew_batch(self.tickets, op.steps)
        if op.__class__ is ApplyInOrder:
            self.note_what_is_let_go(op)
            return await tickets.apply_in_order(self.tickets, op.steps, op.stop_when_refused)
        if op.__class__ is ListNames:
            return await tickets.list_names(self.tickets, op.prefix)
        return await op

    def _read_wall(self) -> float:
        self._pass_without_driver(Wall)
        return WALL_SECONDS + self.wall.read(self.world.now)

    def step(self, op: Any) -> str:
        return str(op.method) if op.__class__ is StoreCall else super().step(op)

    def _send(self, task: Task, op: Any) -> None:
        count = len(self.world.trace)
        super()._send(task, op)
        for index in range(count, len(self.world.trace)):
            event = self.world.trace[index]
            if not isinstance(event, Copied) or op.__class__ is not StoreCall:
                continue
            if op.method == "create_together":
                name, ticket, _ = op.arguments[0][0]
                self.world.trace[index] = Copied(event.at, Apply(name, Withdraw(ticket.nonce)))
                self.world.trace += [
                    Copied(event.at, Apply(name, Withdraw(ticket.nonce)))
                    for name, ticket, _ in op.arguments[0][1:]
                ]
            elif op.method in ("create", "remove"):
                name, which = op.arguments[:2]
                nonce = which.nonce if isinstance(which, Ticket) else which
                self.world.trace[index] = Copied(event.at, Apply(name, Withdraw(nonce)))

    def deliver(self, task: Task, ticket: int, reply: Any, trouble: BaseException | None) -> None:
        if isinstance(reply, SessionEndedError):
            reply, trouble = None, reply
        super().deliver(task, ticket, reply, trouble)

    def _advance(self, task: Task, reply: Any, trouble: BaseException | None) -> None:
        method = task.op.method if task.op.__class__ is StoreCall else ""
        if reply is None and trouble is None and method in ANSWERED:
            trouble = Hurried()  # interrupted while it cleans up
        super()._advance(task, reply, trouble)
        if method == "keep_alive":
            self._tell_deadlines()

    def _unlisten(self, op: Unlisten | Wait) -> None:
        self.wakeups.pop(op.nonce, None)
        node = self.node
        if isinstance(node, OrderedStore):
            node.disarm(self.id, op.nonce)

    # --- events about itself

    def heard(self, call: Callable[[str], None], what: str) -> None:
        if self.alive:
            if self.paused_until > self.world.now:
                self.world.at(self.paused_until, self.heard, call, what)
            else:
                call(what)

    def ended(self, nonce: str) -> None:
        self.tickets.suspect(nonce)
        self.post(nonce)

    def session_over(self, session: str) -> None:
        for nonce in self.tickets.session_reported_ended(session):
            self.post(nonce)
