"""The ticket store on etcd. No I/O here: its coroutines await ``UnaryCall`` and ``WatchCall``, which
``threads`` and ``asyncio`` perform."""

from __future__ import annotations

import contextlib
import math
import secrets
from typing import Any, Final

from ...core.effects import NotApplied, OutcomeUnknown
from ...errors import EngineUnavailable
from ...protocols.tickets.codec import (
    decode_note,
    encode_config,
    encode_note,
    encode_ticket,
    encode_value,
)
from ...protocols.tickets.store import KeptAlive, OpenedSession, Removed, SessionEndedError
from ...rules.record import RETENTION_SECONDS, StoredValue, Tombstone
from ...rules.requests import CellState
from ...rules.tickets import LockConfig, LockView, Ticket, Watched, find, token_at
from ...rules.transitions import BROKEN_KEPT_SECONDS
from . import wire_pb2 as wire
from .codec import Handle, client_key_subject, counted_view_of, is_eviction_note, kind_bytes, kvs_of, view_of
from .errors import CompactedError, LeaseExistsError, LeaseNotFoundError
from .keys import KIND, LIMIT, NOTES, TICKETS, VALUE, Keys, end_of
from .retention import Retention, lease_id
from .routing import ClusterChannel
from .rpc import WatchCall
from .txn import (
    TxnTemplate,
    absent,
    created_at,
    delete,
    first,
    get,
    has_value,
    last,
    modified_at,
    put,
    read_name,
    span,
    txn,
)

__all__ = ["CLOSE_SECONDS", "EtcdStore", "seconds_for"]

CLOSE_SECONDS: Final = 1.0
"""How long closing a client waits for its sessions to be revoked; they expire by themselves."""

LIMIT_KEPT_SECONDS: Final = 366 * 86_400.0
"""How long a semaphore's changed limit is remembered."""

PAGE: Final = 1000
"""Names are listed by pages of this many keys."""

TEMPLATES_KEPT: Final = 500

LEADER_CHANGES: Final = 3
"""A keep-alive is repeated at most this often when the leader changed meanwhile."""

KEEP_ALIVE_TIMEOUT_SECONDS_MIN: Final = 0.5


def seconds_for(ttl: float) -> float:
    """etcd counts leases in whole seconds; its minimum may be longer."""
    return float(max(math.ceil(ttl), 1))


class EtcdStore:
    """One client's ``TicketStore``."""

    def __init__(self, keys: Keys, client: str, channel: ClusterChannel) -> None:
        self.keys = keys
        self.client = client
        self._channel = channel
        self._call = channel.call
        self._notes = keys.client(client) + NOTES
        """The folder of notes about attempts of this client."""
        self._retention = Retention(keys.names, channel)
        self._templates: dict[tuple[object, ...], TxnTemplate] = {}
        self.leases: dict[int, float] = {}
        """The client's own sessions that exist, or may exist, and the length of each."""
        self._requested: set[int] = set()
        """The sessions for which a request may have reached etcd."""

    # --- sessions -------------------------------------------------------------------------------

    async def open_session(self, seconds: float, generation: int) -> OpenedSession:
        """The id is computed, so that a repeated request finds the same session after a lost reply."""
        lease = lease_id(self.client, seconds, generation)
        self.leases.setdefault(lease, seconds)
        fresh, unsent = True, False
        try:
            granted = await self._call("LeaseGrant", wire.LeaseGrantRequest(TTL=int(seconds), ID=lease))
            self.leases[lease] = seconds = float(granted.TTL)
        except LeaseExistsError:
            fresh = False
        except (NotApplied, EngineUnavailable) as error:
            unsent = isinstance(error, NotApplied) or error.nothing_was_sent
            raise
        finally:
            if not unsent:
                self._requested.add(lease)
            elif lease not in self._requested:  # then closing the client has nothing to revoke
                self.leases.pop(lease, None)
        try:
            await self._call("Put", wire.PutRequest(key=self.keys.session(self.client, lease), lease=lease))
        except LeaseNotFoundError:
            raise NotApplied("the session ended as soon as it was opened") from None
        return OpenedSession(lease, seconds, fresh)

    async def keep_alive(
        self, sessions: tuple[int, ...], tickets: tuple[tuple[str, Ticket], ...] = ()
    ) -> KeptAlive:
        """A keep-alive counts if the leader that received it was still the leader afterwards. A leader that
        was paused and resumed still answers for a moment, and the new leader knows nothing of it. So a
        linearizable read follows, and the terms are compared."""
        for _ in range(LEADER_CHANGES):
            responses = await self._channel.keep_alive(sessions, self._keep_alive_timeout(sessions))
            read = await self._call("Txn", self._read_txn(sessions, tickets), urgent=True)
            terms = {response.header.raft_term for response in responses if response.TTL > 0}
            if not terms or terms == {read.header.raft_term}:
                return _kept_alive(sessions, tickets, responses, read)
        raise OutcomeUnknown("etcd changes its leader again and again")

    def _keep_alive_timeout(self, sessions: tuple[int, ...]) -> float:
        """The shortest session decides how soon the keep-alive must be retried, perhaps at another member."""
        longest = self._channel.timeout
        shortest = min([self.leases.get(lease, longest) for lease in sessions])
        return min(longest, max(shortest / 4, KEEP_ALIVE_TIMEOUT_SECONDS_MIN))

    def _read_txn(
        self, sessions: tuple[int, ...], tickets: tuple[tuple[str, Ticket], ...]
    ) -> wire.TxnRequest:
        if not tickets:
            return txn([], [get(self.keys.session(self.client, sessions[0]), keys_only=True)], [])
        return txn([], [get(ticket.handle.key, keys_only=True) for _, ticket in tickets], [])

    async def revoke(self, sessions: tuple[int, ...]) -> None:
        for lease in sessions:
            with contextlib.suppress(LeaseNotFoundError):  # it has ended already
                await self._call("LeaseRevoke", wire.LeaseRevokeRequest(ID=lease))
            self.leases.pop(lease, None)
            self._requested.discard(lease)

    # --- tickets --------------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        ticket: Ticket,
        session: int,
        config: LockConfig | None,
        declared: int,
        alone: bool,
    ) -> LockView:
        nonce = ticket.nonce.encode()
        known = declared if config is None else config.declared
        template = self._template(name, ticket.kind, ticket.mode, known, config is None, alone)
        key = template.key(nonce)
        request = template.fill(key, self._notes + nonce, encode_ticket(ticket), session)
        answer = await self._txn_with_kept(request, [request.success[0].request_put], session)
        if not answer.succeeded:
            view = counted_view_of(template.folder, answer.responses)
            return await self._completed(name, view, ticket)
        revision = answer.header.revision
        newest_token = token_at(revision)
        if template.reads:
            view = counted_view_of(template.folder, answer.responses)
            return view._replace(config=view.config or template.config, newest_token=newest_token)
        own = Ticket(revision, newest_token, *ticket[2:11], Handle(key, revision, revision))
        return LockView(template.config, (own,), None, newest_token)

    async def _txn_with_kept(
        self, request: wire.TxnRequest, puts: list[wire.PutRequest], session: int
    ) -> wire.TxnResponse:
        """``puts``: of the kinds' keys, which outlast the session for a while."""
        while True:
            kept = self._retention.known(RETENTION_SECONDS)
            if kept is None:
                kept = await self._retention.lease(RETENTION_SECONDS)
            for each in puts:
                each.lease = kept
            try:
                answer: wire.TxnResponse = await self._call("Txn", request)
                return answer
            except LeaseNotFoundError:
                # etcd does not say which lease is missing: the session's, or the shared one of the kinds'
                # keys.
                self._retention.invalidate()
                (responses,) = await self._channel.keep_alive((session,), self._channel.timeout)
                if responses.TTL <= 0:
                    raise SessionEndedError from None

    async def create_together(
        self, wanted: tuple[tuple[str, Ticket, LockConfig | None], ...], session: int
    ) -> tuple[LockView, ...] | None:
        """One transaction of those that would create each. All tickets have its revision."""
        templates = [
            self._template(name, ticket.kind, ticket.mode, 0, config is None, alone=True)
            for name, ticket, config in wanted
        ]
        keys = [
            template.key(ticket.nonce.encode())
            for template, (_, ticket, _) in zip(templates, wanted, strict=True)
        ]
        request, puts = wire.TxnRequest(), []
        for template, key, (_, ticket, _) in zip(templates, keys, wanted, strict=True):
            note, before = self._notes + ticket.nonce.encode(), len(request.success)
            request.MergeFrom(template.fill(key, note, encode_ticket(ticket), session))
            puts.append(request.success[before].request_put)
        answer = await self._txn_with_kept(request, puts, session)
        revision = answer.header.revision
        if answer.succeeded:
            return tuple(
                [
                    LockView(
                        template.config,
                        (
                            Ticket(
                                revision, token_at(revision), *ticket[2:11], Handle(key, revision, revision)
                            ),
                        ),
                        None,
                        token_at(revision),
                    )
                    for template, key, (_, ticket, _) in zip(templates, keys, wanted, strict=True)
                ]
            )
        count = len(answer.responses) // len(wanted)
        return tuple(
            [
                counted_view_of(template.folder, answer.responses[count * index : count * (index + 1)])
                for index, template in enumerate(templates)
            ]
        )

    def _template(
        self, name: str, kind: str, mode: str, declared: int, is_new: bool, alone: bool
    ) -> TxnTemplate:
        """The part of the transaction that is the same for every such attempt at this name."""
        which = (name, kind, mode, declared, is_new, alone)
        template = self._templates.get(which)
        if template is None:
            if len(self._templates) >= TEMPLATES_KEPT:
                self._templates.clear()
            template = TxnTemplate(self.keys.folder(name), kind, mode, declared, is_new, alone)
            self._templates[which] = template
        return template

    async def _completed(self, name: str, view: LockView, ticket: Ticket) -> LockView:
        """Where the attempt's ticket existed already, the ticket before it is wanted, too."""
        own = find(view.tickets, ticket.nonce)
        if ticket.kind != "lock" or own is None or own is view.tickets[0]:
            return view
        return await self.read_queue(name, ticket.nonce, "lock", own.order)

    async def read_queue(
        self, name: str, nonce: str = "", kind: str = "", order: int = 0, behind: Ticket | None = None
    ) -> LockView:
        folder = self.keys.folder(name)
        compare, shorter_reads = [], []
        if kind != "lock":
            success = [span(folder, end_of(folder))]
            if nonce:
                success.append(get(self.keys.note(nonce)))
        elif not nonce:
            tickets = folder + TICKETS
            success = [get(folder + KIND), first(tickets, end_of(tickets))]
        else:
            tickets = folder + TICKETS
            own = [get(self.keys.note(nonce)), get(self.keys.ticket(folder, "exclusive", nonce))]
            success = [*read_name(folder, "lock"), *own, last(tickets, end_of(tickets), 1, order)]
            if behind is not None:
                # To find the first ticket etcd sorts all of them: avoid that while the ticket before is
                # known.
                handle: Handle = behind.handle
                compare = [created_at(handle.key, handle.created)]
                shorter_reads = [get(folder + KIND), get(folder + LIMIT), *own, get(handle.key)]
        answer = await self._call(
            "Txn", txn(compare, shorter_reads, success) if compare else txn([], success, [])
        )
        view = counted_view_of(folder, answer.responses)
        me = find(view.tickets, nonce)
        if kind == "lock" and me is not None and me.order != order:
            return await self.read_queue(name, nonce, kind, me.order)
        return view

    async def read_tickets(self, name: str, tickets: tuple[Ticket, ...]) -> tuple[Ticket, ...]:
        """Tickets are always read in full here."""
        return tickets

    async def remove(
        self, name: str, nonce: str, mode: str, order: int = 0, tombstone_session: int | None = None
    ) -> Removed:
        key = self.keys.ticket(self.keys.folder(name), mode, nonce)
        if tombstone_session is not None:
            return await self._replace_by_tombstone(key, self.keys.note(nonce), nonce, tombstone_session)
        if order:
            answer = await self._call("Txn", txn([created_at(key, order)], [delete(key)], []))
            return Removed(answer.succeeded)
        answer = await self._call("DeleteRange", wire.DeleteRangeRequest(key=key))
        if answer.deleted:
            return Removed(True)
        return Removed(False, await self.read_note(nonce))

    async def _replace_by_tombstone(self, key: bytes, note: bytes, nonce: str, session: int) -> Removed:
        written = encode_note(Tombstone(nonce, "withdrawn", "", 0.0))
        success = [delete(key), put(note, written, session)]
        try:
            answer = await self._call("Txn", txn([absent(note)], success, [delete(key), get(note)]))
        except LeaseNotFoundError:
            raise SessionEndedError from None
        found = bool(answer.responses[0].response_delete_range.deleted)
        kvs = kvs_of(answer.responses)
        tombstone = decode_note(kvs[0].value) if kvs else None
        return Removed(
            found, tombstone if tombstone is not None and tombstone.reason != "withdrawn" else None
        )

    async def evict(self, name: str, tickets: tuple[Ticket, ...], reason: str) -> tuple[str, ...]:
        """One by one: a ticket that has gone meanwhile is not among those returned."""
        evicted: list[str] = []
        for ticket in tickets:
            written = encode_note(Tombstone(ticket.nonce, "broken", reason, 0.0))
            note = self.keys.note(ticket.nonce, ticket.client)
            kept = await self._retention.lease(ticket.ttl + BROKEN_KEPT_SECONDS)
            success = [delete(ticket.handle.key), put(note, written, kept)]
            there = created_at(ticket.handle.key, ticket.handle.created)
            try:
                answer = await self._kept_txn([there], success)
            except NotApplied as refusal:
                raise OutcomeUnknown(f"some of them: {refusal}") if evicted else refusal from None
            if answer.succeeded:
                evicted.append(ticket.nonce)
        return tuple(evicted)

    async def read_note(self, nonce: str) -> Tombstone | None:
        """In the folder of this client, which has the ticket, and of the client that made the attempt."""
        keys = {self.keys.note(nonce, self.client): None, self.keys.note(nonce): None}
        answer = await self._call("Txn", txn([], [get(key) for key in keys], []))
        for kv in kvs_of(answer.responses):
            note = decode_note(kv.value)
            if note.reason != "withdrawn":
                return note
        return None

    async def exchange(self, name: str, old: Ticket, new: Ticket, session: int) -> None:
        key = self.keys.ticket(self.keys.folder(name), new.mode, new.nonce)
        compare = [created_at(old.handle.key, old.handle.created), absent(self.keys.note(new.nonce))]
        success = [delete(old.handle.key), put(key, encode_ticket(new, new.token, new.order), session)]
        try:
            await self._call("Txn", txn(compare, success, []))
        except LeaseNotFoundError:
            raise SessionEndedError from None

    async def detach(self, name: str, ticket: Ticket, seconds: float) -> bool:
        lease = secrets.randbits(62) | 1
        await self._call("LeaseGrant", wire.LeaseGrantRequest(TTL=int(seconds_for(seconds)), ID=lease))
        if await self._rewritten(ticket, lease) is not None:
            return True
        await self._call("LeaseRevoke", wire.LeaseRevokeRequest(ID=lease))
        return False

    async def attach(self, name: str, ticket: Ticket, session: int) -> Ticket | None:
        try:
            return await self._rewritten(ticket, session)
        except LeaseNotFoundError:
            raise SessionEndedError from None

    async def _rewritten(self, ticket: Ticket, lease: int) -> Ticket | None:
        """The ticket with this content, on this lease, unless another client changed it. Its key stays, and
        with it its create revision: its order and its token."""
        handle: Handle = ticket.handle
        in_place = ticket.order == handle.created
        payload = encode_ticket(ticket, 0 if in_place else ticket.token, 0 if in_place else ticket.order)
        compare = [modified_at(handle.key, handle.version)]
        answer = await self._call("Txn", txn(compare, [put(handle.key, payload, lease)], []))
        if not answer.succeeded:
            return None
        return ticket._replace(handle=handle._replace(version=answer.header.revision), session=lease)

    # --- beside the tickets ---------------------------------------------------------------------

    async def set_value(self, name: str, ticket: Ticket, value: StoredValue, retention: float) -> bool:
        handle: Handle = ticket.handle
        key = self.keys.folder(name) + VALUE
        kept = await self._retention.lease(retention)
        success = [put(key, encode_value(value), kept)]
        answer = await self._kept_txn([created_at(handle.key, handle.created)], success)
        return bool(answer.succeeded)

    async def read_cell(self, name: str) -> CellState:
        answer = await self._call("Txn", txn([], [get(self.keys.cell(name))], []))
        return _cell_state(answer)

    async def swap_cell(self, name: str, expected: int, data: bytes) -> CellState:
        """A cell's version is its mod revision, so the compare and the new version cost nothing more."""
        key = self.keys.cell(name)
        answer = await self._call("Txn", txn([modified_at(key, expected)], [put(key, data, 0)], [get(key)]))
        return CellState(answer.header.revision, None, True) if answer.succeeded else _cell_state(answer)

    async def set_config(self, name: str, seen: LockConfig | None, config: LockConfig) -> LockView | None:
        folder = self.keys.folder(name)
        kind_value = kind_bytes(config.kind, config.declared)
        success = []
        if seen is None:
            compare = [absent(folder + KIND)]
            success.append(put(folder + KIND, kind_value, await self._retention.lease(RETENTION_SECONDS)))
        else:
            compare = [has_value(folder + KIND, kind_value)]
            limit = folder + LIMIT
            compare.append(absent(limit) if _as_declared(seen) else has_value(limit, encode_config(seen)))
        if _as_declared(config):
            success.append(delete(folder + LIMIT))
        else:
            kept = await self._retention.lease(LIMIT_KEPT_SECONDS)
            success.append(put(folder + LIMIT, encode_config(config), kept))
        answer = await self._kept_txn(compare, [*success, span(folder, end_of(folder))])
        return view_of(folder, kvs_of(answer.responses)) if answer.succeeded else None

    async def _kept_txn(self, compare: list[wire.Compare], success: list[wire.RequestOp]) -> Any:
        try:
            return await self._call("Txn", txn(compare, success, []))
        except LeaseNotFoundError:
            self._retention.invalidate()
            raise NotApplied("a shared lease for retention was missing") from None

    async def list_names(self, prefix: str) -> list[tuple[str, LockView]]:
        try:
            kvs = await self._pages(*self.keys.beginning_with(prefix))
        except CompactedError:
            raise NotApplied("etcd was compacted during the read") from None
        by_name: dict[str, list[wire.KeyValue]] = {}
        for kv in kvs:
            name, _ = self.keys.name_of(kv.key)
            by_name.setdefault(name, []).append(kv)
        return [(name, view_of(self.keys.folder(name), found)) for name, found in by_name.items()]

    async def _pages(self, start: bytes, end: bytes) -> list[wire.KeyValue]:
        """All keys of the range, as of one revision."""
        kvs: list[wire.KeyValue] = []
        revision = 0
        while True:
            request = wire.RangeRequest(key=start, range_end=end, limit=PAGE, revision=revision)
            answer = await self._call("Range", request)
            kvs += answer.kvs
            if not answer.more:
                return kvs
            revision = revision or answer.header.revision
            start = answer.kvs[-1].key + b"\0"

    async def watch(self, nonce: str, name: str, watched: Watched, tickets: tuple[Ticket, ...] = ()) -> None:
        await WatchCall(nonce, name, watched, tickets)

    # --- events about this client ----------------------------------------------------------------------

    async def missed_events(self) -> tuple[list[str], list[int]]:
        """After a time without a watch: the attempts that were ended from outside, and the living
        sessions."""
        start = self.keys.client(self.client)
        kvs = await self._pages(start, end_of(start))
        ended, living = [], []
        for kv in kvs:
            which = client_key_subject(kv.key[len(start) :])
            if isinstance(which, int):
                living.append(which)
            elif which is not None and is_eviction_note(kv.value):
                ended.append(which)
        return ended, living


def _cell_state(answer: Any) -> CellState:
    kvs = kvs_of(answer.responses)
    return CellState(kvs[0].mod_revision, kvs[0].value) if kvs else CellState(0, None)


def _kept_alive(
    sessions: tuple[int, ...],
    tickets: tuple[tuple[str, Ticket], ...],
    responses: list[wire.LeaseKeepAliveResponse],
    read: wire.TxnResponse,
) -> KeptAlive:
    lives = {response.ID: response.TTL > 0 for response in responses}
    there = []
    for (_, ticket), response in zip(tickets, read.responses, strict=False):
        kvs = response.response_range.kvs
        there.append(bool(kvs) and kvs[0].create_revision == ticket.handle.created)
    return KeptAlive(tuple([lives.get(lease, False) for lease in sessions]), tuple(there))


def _as_declared(config: LockConfig) -> bool:
    """Then nothing needs to be stored beside the kind."""
    return config.limit == config.declared and not config.admitted_through
