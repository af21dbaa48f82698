"""Short constructors for the parts of transactions."""

from __future__ import annotations

from typing import Final

from . import wire_pb2 as wire

__all__ = [
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
