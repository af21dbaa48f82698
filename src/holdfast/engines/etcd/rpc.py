"""etcd's remote procedures, and the calls that the store awaits and a transport performs."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from ...rules.tickets import Ticket, Watched
from . import wire_pb2 as wire
from .errors import UNREADABLE

__all__ = [
    "KEEP_ALIVE",
    "METHODS",
    "WATCH",
    "Method",
    "RpcError",
    "UnaryCall",
    "WatchCall",
    "decode_response",
]

Metadata = tuple[tuple[str, str], ...]


class Method(NamedTuple):
    """One remote procedure."""

    path: str
    request: Any
    response: Any


METHODS: Final = {
    "Range": Method("/etcdserverpb.KV/Range", wire.RangeRequest, wire.RangeResponse),
    "Put": Method("/etcdserverpb.KV/Put", wire.PutRequest, wire.PutResponse),
    "DeleteRange": Method("/etcdserverpb.KV/DeleteRange", wire.DeleteRangeRequest, wire.DeleteRangeResponse),
    "Txn": Method("/etcdserverpb.KV/Txn", wire.TxnRequest, wire.TxnResponse),
    "Compact": Method("/etcdserverpb.KV/Compact", wire.CompactionRequest, wire.CompactionResponse),
    "LeaseGrant": Method("/etcdserverpb.Lease/LeaseGrant", wire.LeaseGrantRequest, wire.LeaseGrantResponse),
    "LeaseRevoke": Method(
        "/etcdserverpb.Lease/LeaseRevoke", wire.LeaseRevokeRequest, wire.LeaseRevokeResponse
    ),
    "LeaseTimeToLive": Method(
        "/etcdserverpb.Lease/LeaseTimeToLive", wire.LeaseTimeToLiveRequest, wire.LeaseTimeToLiveResponse
    ),
    "LeaseLeases": Method(
        "/etcdserverpb.Lease/LeaseLeases", wire.LeaseLeasesRequest, wire.LeaseLeasesResponse
    ),
    "Authenticate": Method(
        "/etcdserverpb.Auth/Authenticate", wire.AuthenticateRequest, wire.AuthenticateResponse
    ),
    "Status": Method("/etcdserverpb.Maintenance/Status", wire.StatusRequest, wire.StatusResponse),
}
"""Methods with one request and one response."""

KEEP_ALIVE: Final = Method(
    "/etcdserverpb.Lease/LeaseKeepAlive", wire.LeaseKeepAliveRequest, wire.LeaseKeepAliveResponse
)
WATCH: Final = Method("/etcdserverpb.Watch/Watch", wire.WatchRequest, wire.WatchResponse)


class RpcError(Exception):
    """A call failed, with one of gRPC's status codes or one of ``errors``."""

    def __init__(self, code: str, details: str) -> None:
        super().__init__(code, details)
        self.code = code
        self.details = details


def decode_response(method: Method, message: bytes) -> Any:
    """Decode a response. Raises RpcError: the outcome is unknown."""
    try:
        return method.response.FromString(message)
    except DecodeError:
        raise RpcError(UNREADABLE, "a response that is not a message of etcd's") from None


class UnaryCall(NamedTuple):
    """One call over one connection. Several ``requests`` go over one stream and get as many responses.
    Raises RpcError."""

    connection: Any
    method: str
    """"" for the keep-alive stream."""
    requests: tuple[Any, ...]
    timeout: float
    """Counted from the sending."""
    metadata: Metadata
    urgent: bool = False
    """A keep-alive depends on it."""

    def __await__(self) -> Generator[UnaryCall, Any, Any]:
        return (yield self)


class WatchCall(NamedTuple):
    """Watch for this nonce over the client's watch stream, as ``TicketStore.watch`` describes."""

    nonce: str
    name: str
    watched: Watched
    tickets: tuple[Ticket, ...] = ()

    def __await__(self) -> Generator[WatchCall, None, None]:
        return (yield self)
