"""Transactions: short constructors for their parts, and the template of the one that creates a ticket."""

from __future__ import annotations

from typing import Final

from ...rules.tickets import LockConfig
from . import wire_pb2 as wire
from .codec import kind_bytes
from .keys import KIND, LIMIT, TICKETS, Keys, end_of

__all__ = [
    "TxnTemplate",
    "absent",
    "created_at",
    "delete",
    "empty",
    "first",
    "get",
    "has_value",
    "last",
    "modified_at",
    "put",
    "read_name",
    "span",
    "txn",
]

CREATE: Final = wire.Compare.CREATE
MOD: Final = wire.Compare.MOD
VALUE: Final = wire.Compare.VALUE


def txn(
    compare: list[wire.Compare], success: list[wire.RequestOp], failure: list[wire.RequestOp]
) -> wire.TxnRequest:
    return wire.TxnRequest(compare=compare, success=success, failure=failure)


# --- compares


def absent(key: bytes) -> wire.Compare:
    return wire.Compare(target=CREATE, key=key, create_revision=0)


def empty(start: bytes, end: bytes) -> wire.Compare:
    """No key in this range: etcd treats an empty range as one key that was never created."""
    return wire.Compare(target=CREATE, key=start, range_end=end, create_revision=0)


def created_at(key: bytes, revision: int) -> wire.Compare:
    return wire.Compare(target=CREATE, key=key, create_revision=revision)


def modified_at(key: bytes, revision: int) -> wire.Compare:
    return wire.Compare(target=MOD, key=key, mod_revision=revision)


def has_value(key: bytes, value: bytes) -> wire.Compare:
    """False where the key does not exist."""
    return wire.Compare(target=VALUE, key=key, value=value)


# --- operations


def put(key: bytes, value: bytes, lease: int) -> wire.RequestOp:
    return wire.RequestOp(request_put=wire.PutRequest(key=key, value=value, lease=lease))


def delete(key: bytes) -> wire.RequestOp:
    return wire.RequestOp(request_delete_range=wire.DeleteRangeRequest(key=key))


def get(key: bytes, keys_only: bool = False) -> wire.RequestOp:
    return wire.RequestOp(request_range=wire.RangeRequest(key=key, keys_only=keys_only))


def span(start: bytes, end: bytes) -> wire.RequestOp:
    """All keys of the range."""
    return wire.RequestOp(request_range=wire.RangeRequest(key=start, range_end=end))


def first(start: bytes, end: bytes) -> wire.RequestOp:
    """The key that was created first."""
    return wire.RequestOp(
        request_range=wire.RangeRequest(
            key=start,
            range_end=end,
            limit=1,
            sort_order=wire.RangeRequest.ASCEND,
            sort_target=wire.RangeRequest.CREATE,
        )
    )


def last(start: bytes, end: bytes, count: int, before: int = 0) -> wire.RequestOp:
    """The keys that were created last; ``before``: among those created before this revision."""
    return wire.RequestOp(
        request_range=wire.RangeRequest(
            key=start,
            range_end=end,
            limit=count,
            sort_order=wire.RangeRequest.DESCEND,
            sort_target=wire.RangeRequest.CREATE,
            max_create_revision=max(before - 1, 0),
        )
    )


# --- the transaction that creates a ticket


class TxnTemplate:
    """The transaction that creates a ticket: built once for attempts of one kind at a name, completed for
    each.

    Every grant needs one. Copying a protobuf message is cheap, building one is not.
    """

    __slots__ = ("_tickets", "_txn", "config", "folder", "reads")

    def __init__(self, folder: bytes, kind: str, mode: str, declared: int, is_new: bool, alone: bool) -> None:
        """``is_new``: the name has no kind yet. ``alone``: only if no ticket blocks it, where etcd can
        compare that."""
        self.folder = folder
        self._tickets = Keys.ticket(folder, mode, "")
        self.config = LockConfig(kind, declared, declared)
        kind_value = kind_bytes(kind, declared)
        compare = [
            absent(b""),
            absent(b""),
            absent(folder + KIND) if is_new else has_value(folder + KIND, kind_value),
        ]
        alone = alone and mode != "permit"
        if alone:
            others = folder + (TICKETS if mode != "read" else TICKETS + b"x/")
            compare.append(empty(others, end_of(others)))
        reads = _after(folder, kind, mode, alone)
        self.reads = bool(reads)
        """Whether other tickets may exist."""
        success = [put(folder + KIND, kind_value, 0), put(b"", b"", 0), *reads]
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
