"""The transaction that creates a ticket: built once for a name and completed for each attempt.

Every grant needs one. Copying a protobuf message is cheap, building one is not.
"""

from __future__ import annotations

from ...rules.tickets import LockConfig
from . import wire_pb2 as wire
from .codec import kind_bytes
from .keys import KIND, LIMIT, TICKETS, Keys, end_of
from .txn import absent, delete, empty, first, get, has_value, last, put, span, txn

__all__ = ["TxnTemplate", "read_name"]


class TxnTemplate:
    """The part that is the same for every attempt of one kind at one name."""

    __slots__ = ("_tickets", "_txn", "config", "folder", "reads")

    def __init__(self, folder: bytes, kind: str, mode: str, declared: int, is_new: bool, alone: bool) -> None:
        """``is_new``: the name has no kind yet. ``alone``: only if no ticket blocks it, where etcd can
        compare that."""
        self.folder = folder
        self._tickets = Keys.ticket(folder, mode, "")
        self.config = LockConfig(kind, declared, declared)
        says = kind_bytes(kind, declared)
        compare = [
            absent(b""),
            absent(b""),
            absent(folder + KIND) if is_new else has_value(folder + KIND, says),
        ]
        alone = alone and mode != "permit"
        if alone:
            others = folder + (TICKETS if mode != "read" else TICKETS + b"x/")
            compare.append(empty(others, end_of(others)))
        reads = _after(folder, kind, mode, alone)
        self.reads = bool(reads)
        """Whether other tickets may exist."""
        success = [put(folder + KIND, says, 0), put(b"", b"", 0), *reads]
        if is_new:
            success.append(delete(folder + LIMIT))
        self._txn = txn(compare, success, [get(b""), get(b""), *read_name(folder, kind)])

    def key(self, nonce: bytes) -> bytes:
        """The key of an attempt's ticket."""
        return self._tickets + nonce

    def fill(self, key: bytes, note: bytes, payload: bytes, session: int) -> wire.TxnRequest:
        """The transaction for one attempt. The caller sets the lease of the first operation, the kind's
        key."""
        request = wire.TxnRequest()
        request.CopyFrom(self._txn)
        compare, success, failure = request.compare, request.success, request.failure
        compare[0].key = failure[1].request_range.key = key
        compare[1].key = failure[0].request_range.key = note
        ticket = success[1].request_put
        ticket.key, ticket.value, ticket.lease = key, payload, session
        return request


def _after(folder: bytes, kind: str, mode: str, alone: bool) -> list[wire.RequestOp]:
    """What to read in the same transaction. A ticket that is alone needs nothing; of a mutex the ticket
    before it is enough."""
    tickets = folder + TICKETS
    if kind == "semaphore":
        return [get(folder + KIND), get(folder + LIMIT), span(tickets, end_of(tickets))]
    if alone and mode != "read":
        return []
    if kind == "lock":
        return [last(tickets, end_of(tickets), 2), first(tickets, end_of(tickets))]
    return [span(tickets, end_of(tickets))]


def read_name(folder: bytes, kind: str) -> list[wire.RequestOp]:
    """Reads the name; of a mutex, the first ticket only."""
    tickets = folder + TICKETS
    tickets_read = first(tickets, end_of(tickets)) if kind == "lock" else span(tickets, end_of(tickets))
    return [get(folder + KIND), get(folder + LIMIT), tickets_read]
