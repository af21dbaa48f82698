"""An ordered store with sessions, and clients of the tickets family on it.

The store does what ``protocols.tickets.ops`` says, by a clock of its own. What stands there is also told as a
record, so that whatever checks traces of records checks these too. It never forgets: it stands for a cluster
that agrees on everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.core.effects import Apply, ApplyInOrder, ListNames, RenewBatch, Unlisten, Wait
from holdfast.protocols import tickets
from holdfast.protocols.tickets import TicketClient
from holdfast.protocols.tickets.store import (
    EVERYTHING,
    Arm,
    Enter,
    Evict,
    Exchange,
    Fill,
    Keep,
    Kept,
    Lend,
    Look,
    Names,
    Open,
    Opened,
    ReadNote,
    Remove,
    Removed,
    Retire,
    SessionEndedError,
    SetLimit,
    SetValue,
    Take,
    Wall,
)
from holdfast.rules.record import EMPTY, Record, StoredValue, Tombstone
from holdfast.rules.requests import (
    Acquire,
    Break,
    Broken,
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

from .client import GIVING_BACK, Task
from .servers import WALL_SECONDS, Node
from .trace import Changed, Copied, LetGo
from .translating import Hurried, TranslatingClient

if TYPE_CHECKING:
    from .world import Clock, World

__all__ = ["OrderedStore", "TicketsClient"]

STORE_OPS: Final = (
    Open,
    Keep,
    Retire,
    Enter,
    Look,
    Fill,
    Remove,
    Evict,
    ReadNote,
    Exchange,
    Lend,
    Take,
    SetValue,
    SetLimit,
    Names,
    Arm,
)


ANSWERED: Final = (Open, Keep, Enter, Look, Fill, Remove, Evict, Names)
"""These are never answered with nothing."""


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
        self._armed: dict[tuple[str, str], tuple[str, Watched, frozenset[str]]] = {}
        """(client, nonce) → name, what is watched."""
        self._acts: dict[type, Callable[[Any], Any]] = {
            Open: self._open,
            Keep: self._keep,
            Retire: self._retire,
            Enter: self._enter,
            Look: self._look,
            Fill: lambda op: op.tickets,
            Remove: self._remove,
            Evict: self._evict,
            ReadNote: self._read_note,
            Exchange: self._exchange,
            Lend: self._lend,
            Take: self._take,
            SetValue: self._set_value,
            SetLimit: self._set_limit,
            Names: self._names,
            Arm: self._arm,
        }

    def perform(self, op: Any) -> Any:
        act = self._acts.get(op.__class__)
        if act is None:
            return super().perform(op)
        try:
            return act(op)
        except SessionEndedError as gone:
            return gone

    # --- what stands there ----------------------------------------------------------------------

    def _place(self, name: str) -> Place:
        return self._places.setdefault(name, Place())

    def _view(self, name: str, nonce: str = "") -> LockView:
        order = self._places.get(name)
        note = self._notes.get(nonce)
        if order is None:
            return LockView(note=note and note[0])
        return LockView(
            order.config,
            ordered(tuple(order.tickets.values())),
            order.value,
            order.newest_token,
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
        for (client, nonce), (order, watched, nonces) in self._armed.items():
            if order != name:
                continue
            if (
                watched == EVERYTHING
                or (nonces & touched and (gone or watched.turns))
                or (watched.limit and before.limit != after.limit)
            ):
                woken.append(Wake(client, nonce))
        return tuple(woken)

    # --- sessions -------------------------------------------------------------------------------

    def _open(self, op: Open) -> Opened:
        session = str(op.generation)  # the client has put its name to it
        fresh = session not in self._sessions
        if fresh:
            self._begin(session, op.seconds)
        return Opened(session, op.seconds, fresh)

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
        for name, order in self._places.items():
            gone = [t.nonce for t in order.tickets.values() if t.handle[0] == session]
            for nonce in gone:
                del order.tickets[nonce]
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

    def _keep(self, op: Keep) -> Kept:
        alive = []
        touched: dict[str, None] = {}
        for session in op.sessions:
            known = self._sessions.get(session)
            alive.append(known is not None)
            if known is not None:
                known[1] = self.now() + known[0]
                for name, order in self._places.items():
                    if any(t.handle[0] == session for t in order.tickets.values()):
                        touched[name] = None
        for name in touched:
            self._changed(name, Inspect(), Done(), frozenset(), gone=False)
        there = tuple([t.nonce in self._place(name).tickets for name, t in op.tickets])
        return Kept(tuple(alive), there)

    def _retire(self, op: Retire) -> None:
        for session in op.sessions:
            if session in self._sessions:
                self._end(session)

    def _lives(self, session: str) -> None:
        if session not in self._sessions:
            raise SessionEndedError

    # --- tickets --------------------------------------------------------------------------------

    def _enter(self, op: Enter) -> LockView:
        self._lives(op.session)
        order, ticket = self._place(op.name), op.ticket
        config, asked = order.config, op.config
        if asked is None or config is None:
            fits = asked is config
        else:
            fits = (asked.kind, asked.declared) == (config.kind, config.declared)
        if fits and op.alone and ticket.kind != "semaphore":
            last = ticket._replace(order=self._revision + 1)
            fits = not blockers(
                self._view(op.name).tickets,
                last,
                config or LockConfig(ticket.kind, op.declared, op.declared),
            )
        if fits and ticket.nonce not in order.tickets and ticket.nonce not in self._notes:
            if config is None:
                order.config = LockConfig(ticket.kind, op.declared, op.declared)
            self._put(op.name, ticket, op.session)
            request = Acquire(
                ticket.nonce,
                ticket.client,
                ticket.owner,
                ticket.kind,
                ticket.mode,
                ticket.ttl,
                not op.alone,
            )
            self._changed(op.name, request, Done(), frozenset({ticket.nonce}), gone=False)
        return self._view(op.name, ticket.nonce)

    def _put(self, name: str, ticket: Ticket, session: str) -> Ticket:
        self._revision += 1
        if not ticket.order:
            ticket = ticket._replace(order=self._revision, token=token_at(self._revision))
        ticket = ticket._replace(handle=(session, self._revision), session=session)
        order = self._place(name)
        order.tickets[ticket.nonce] = ticket
        order.newest_token = max(order.newest_token, ticket.token)
        return ticket

    def _look(self, op: Look) -> LockView:
        view = self._view(op.name, op.nonce)
        if op.behind is not None:
            behind = find(view.tickets, op.behind.nonce)
            if behind is not None and behind.order == op.behind.order:
                return view._replace(
                    tickets=tuple([t for t in view.tickets if t is behind or t.nonce == op.nonce])
                )
        return view

    def _remove(self, op: Remove) -> Removed:
        if op.bury is not None:
            self._lives(op.bury)
        order = self._place(op.name)
        ticket = order.tickets.get(op.nonce)
        note = self._notes.get(op.nonce)
        if op.bury is not None and note is None:
            self._notes[op.nonce] = Tombstone(op.nonce, "withdrawn", "", 0.0), op.bury
        if ticket is None or (op.order and ticket.order != op.order):
            return Removed(False, note[0] if note is not None and note[0].reason == "broken" else None)
        self._revision += 1
        del order.tickets[op.nonce]
        # One that is tried and taken back may be tried again.
        request: Request = Refresh(op.nonce) if op.order else Release(op.nonce)
        self._changed(op.name, request, Done(), frozenset({op.nonce}), gone=True)
        return Removed(True)

    def _evict(self, op: Evict) -> tuple[str, ...]:
        order = self._place(op.name)
        evicted = [t for t in op.tickets if t.nonce in order.tickets]
        told = tuple([h for h in self.records[op.name].holders if find(evicted, h.nonce)]) if evicted else ()
        for ticket in evicted:
            self._revision += 1
            del order.tickets[ticket.nonce]
            self._notes[ticket.nonce] = Tombstone(ticket.nonce, "broken", op.reason, 0.0), ""
            client = self.world.by_id.get(ticket.client)
            if isinstance(client, TicketsClient):
                self._tell(client, client.ended, ticket.nonce)
        if evicted:
            reply = Broken(max(t.token for t in evicted) + 1, told)
            nonces = frozenset([t.nonce for t in evicted])
            self._changed(op.name, Break(None, op.reason), reply, nonces, gone=True)
        return tuple([t.nonce for t in evicted])

    def _read_note(self, op: ReadNote) -> Tombstone | None:
        note = self._notes.get(op.nonce)
        return note[0] if note is not None and note[0].reason != "withdrawn" else None

    def _exchange(self, op: Exchange) -> None:
        self._lives(op.session)
        order = self._place(op.name)
        if op.old.nonce not in order.tickets or op.new.nonce in self._notes:
            return
        del order.tickets[op.old.nonce]
        self._put(op.name, op.new, op.session)
        request = Downgrade(op.old.nonce, op.new.nonce)
        self._changed(op.name, request, Done(), frozenset({op.old.nonce}), gone=True)

    def _lend(self, op: Lend) -> bool:
        session = f"lent/{self._revision}"
        if not self._is_as(op.name, op.ticket):
            return False
        self._begin(session, op.seconds)
        self._put(op.name, op.ticket, session)
        self._changed(op.name, Inspect(), Done(), frozenset({op.ticket.nonce}), gone=False)
        return True

    def _take(self, op: Take) -> Ticket | None:
        self._lives(op.session)
        if not self._is_as(op.name, op.ticket):
            return None
        ticket = self._put(op.name, op.ticket, op.session)
        request = Renew(ticket.nonce, ticket.ttl)
        self._changed(op.name, request, Done(), frozenset({ticket.nonce}), gone=False)
        return ticket

    def _is_as(self, name: str, ticket: Ticket) -> bool:
        """Nobody has changed it since it was read."""
        known = self._place(name).tickets.get(ticket.nonce)
        return known is not None and known.handle == ticket.handle

    # --- beside the tickets ---------------------------------------------------------------------

    def _set_value(self, op: SetValue) -> bool:
        order = self._place(op.name)
        if op.ticket.nonce not in order.tickets:
            return False
        order.value = op.value
        self._changed(op.name, Inspect(), Done(), frozenset(), gone=False)
        return True

    def _set_limit(self, op: SetLimit) -> LockView | None:
        order = self._place(op.name)
        if order.config != op.seen:
            return None
        order.config = op.config
        self._changed(op.name, Inspect(), Done(), frozenset(), gone=False)
        return self._view(op.name)

    def _names(self, op: Names) -> list[tuple[str, LockView]]:
        return [(name, self._view(name)) for name in sorted(self._places) if name.startswith(op.prefix)]

    def _arm(self, op: Arm) -> None:
        client = op.nonce.partition("-")[0]
        self._armed[client, op.nonce] = op.name, op.watched, frozenset(op.watched.nonces)

    def disarm(self, client: str, nonce: str) -> None:
        self._armed.pop((client, nonce), None)


class TicketsClient(TranslatingClient):
    """A client whose requests are translated before they are sent."""

    def __init__(
        self, *arguments: Any, wall: Clock, seconds_for: Callable[[float], float], **more: Any
    ) -> None:
        super().__init__(*arguments, **more)
        self.wall = wall
        self.client = TicketClient(self.id, seconds_for)
        for op in STORE_OPS:
            self._acts[op] = self._send
        self._at_once[Wall] = lambda op: WALL_SECONDS + self.wall.read(self.world.now)
        self._at_once[Unlisten] = self._unlisten

    async def _answer(self, op: Any) -> Any:
        if op.__class__ is Apply:
            if op.request.__class__ in GIVING_BACK:
                how = op.request.__class__.__name__
                self.world.trace.append(LetGo(self.world.now, self.id, op.request.nonce, how))
            return await tickets.apply(self.client, op.name, op.request)
        if op.__class__ is RenewBatch:
            return await tickets.renew_batch(self.client, op.steps)
        if op.__class__ is ApplyInOrder:
            return await tickets.apply_in_order(self.client, op.steps, op.stop_when_refused)
        if op.__class__ is ListNames:
            return await tickets.list_names(self.client, op.prefix)
        return await op

    def _send(self, task: Task, op: Any) -> None:
        if op.__class__ is Open:
            # The store knows sessions by their names, which begin with ours.
            named = f"{self.id}/{op.seconds:g}/{op.generation}"
            op = Open(op.seconds, named)  # type: ignore[arg-type]  # read by the store of this file only
        count = len(self.world.trace)
        super()._send(task, op)
        for index in range(count, len(self.world.trace)):
            event = self.world.trace[index]
            if isinstance(event, Copied) and isinstance(op, Enter | Remove):
                nonce = op.ticket.nonce if isinstance(op, Enter) else op.nonce
                self.world.trace[index] = Copied(event.at, Apply(op.name, Withdraw(nonce)))

    def deliver(self, task: Task, ticket: int, reply: Any, trouble: BaseException | None) -> None:
        if isinstance(reply, SessionEndedError):
            reply, trouble = None, reply
        super().deliver(task, ticket, reply, trouble)

    def _advance(self, task: Task, reply: Any, trouble: BaseException | None) -> None:
        if reply is None and trouble is None and task.op.__class__ in ANSWERED:
            trouble = Hurried()  # interrupted while it cleans up
        kept = task.op.__class__ is Keep
        super()._advance(task, reply, trouble)
        if kept:
            self._tell_deadlines()

    def _unlisten(self, op: Unlisten | Wait) -> None:
        self.boxes.pop(op.nonce, None)
        node = self.node
        if isinstance(node, OrderedStore):
            node.disarm(self.id, op.nonce)

    # --- what it hears of itself

    def heard(self, call: Callable[[str], None], what: str) -> None:
        if self.alive:
            if self.paused_until > self.world.now:
                self.world.at(self.paused_until, self.heard, call, what)
            else:
                call(what)

    def ended(self, nonce: str) -> None:
        self.client.suspect(nonce)
        self.post(nonce)

    def session_over(self, session: str) -> None:
        for nonce in self.client.over(session):
            self.post(nonce)
