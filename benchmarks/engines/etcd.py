"""etcd, one node, and its raw limit: two bare transactions over grpcio.

Packages are imported when a handle is opened: what is not installed is left out.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any, Final

from holdfast.lab.servers import Etcd

from ..contestant import Ability, Contestant, Handle, Place
from ..service import Service
from .group import Group
from .subject import open_asyncio, open_threads
from .tooz import open_tooz

__all__ = ["GROUP"]

URL: Final = "etcd://{addresses}"
TTL_SECONDS: Final = 30


@contextlib.contextmanager
def serve() -> Iterator[Service]:
    with Etcd() as server:
        version = server.call("/v3/maintenance/status")["version"]
        yield Service((server.address,), {"etcd": version})


class BareTransactions(Handle):
    """A ticket put with a lease that all share, if it is not there, and what is before it read in the same
    transaction; a ticket deleted. It is no lock: nobody waits, and nothing is renewed."""

    def __init__(self, place: Place, name: str) -> None:
        import grpc

        wire: Any = import_module("holdfast.engines.etcd.wire_pb2")

        self._channel = grpc.insecure_channel(place.addresses[0])
        grant = self._channel.unary_unary(
            "/etcdserverpb.Lease/LeaseGrant",
            wire.LeaseGrantRequest.SerializeToString,
            wire.LeaseGrantResponse.FromString,
        )
        self._txn = self._channel.unary_unary(
            "/etcdserverpb.KV/Txn", wire.TxnRequest.SerializeToString, wire.TxnResponse.FromString
        )
        folder = f"{place.space}/{name}/".encode()
        lease = grant(wire.LeaseGrantRequest(TTL=3600)).ID
        value = secrets.token_bytes(32)
        self._take = wire.TxnRequest(
            compare=[wire.Compare(target=wire.Compare.CREATE, key=folder + b"t", create_revision=0)],
            success=[
                wire.RequestOp(request_put=wire.PutRequest(key=folder + b"t", value=value, lease=lease)),
                wire.RequestOp(request_range=wire.RangeRequest(key=folder, range_end=folder + b"u", limit=2)),
            ],
        )
        self._give = wire.TxnRequest(
            compare=[wire.Compare(target=wire.Compare.VALUE, key=folder + b"t", value=value)],
            success=[wire.RequestOp(request_delete_range=wire.DeleteRangeRequest(key=folder + b"t"))],
        )
        self.acquire = partial(self._succeed, self._take)
        self.release = partial(self._succeed, self._give)

    def _succeed(self, request: Any) -> None:
        if not self._txn(request).succeeded:
            raise RuntimeError("not granted")

    def try_acquire(self) -> bool:
        return bool(self._txn(self._take).succeeded)

    def close(self) -> None:
        self._channel.close()


ETCD3: Final = "etcd3"
"""Of python-etcd3: the folder beside the environment's others, since it needs packages of another time."""


class PythonEtcd3(Handle):
    """``etcd3.Lock`` (python-etcd3): a lease for every attempt, a watch for every wait."""

    def __init__(self, place: Place, name: str) -> None:
        sys.path.insert(0, f"{sys.prefix}/{ETCD3}")
        import etcd3

        host, _, port = place.addresses[0].rpartition(":")
        self._client: Any = etcd3.client(host=host, port=int(port))
        self._lock: Any = self._client.lock(f"{place.space}/{name}")
        self.acquire = self._acquire
        self.release = self._lock.release

    def _acquire(self) -> None:
        # After ten seconds, its limit, it is asked again: a release between an attempt and the watch behind
        # it goes unnoticed.
        while not self._lock.acquire():
            pass

    def try_acquire(self) -> bool:
        return bool(self._lock.acquire(timeout=0))

    def close(self) -> None:
        self._client.close()


PROCESSES: frozenset[Ability] = frozenset({"processes"})

GROUP = Group(
    "etcd",
    (
        Contestant(
            "holdfast-etcd",
            "Holdfast, etcd",
            "subject",
            partial(open_threads, URL),
            PROCESSES | {"crowd"},
            "holdfast",
        ),
        Contestant(
            "holdfast-etcd-asyncio",
            "Holdfast, etcd, asyncio",
            "subject",
            partial(open_asyncio, URL),
            frozenset({"transactions", "tasks", "crowd"}),
            "holdfast",
        ),
        Contestant("etcd3", "python-etcd3", "peer", PythonEtcd3, PROCESSES, "etcd3", apart=ETCD3),
        Contestant(
            "tooz-etcd",
            "tooz over etcd3gw",
            "peer",
            partial(open_tooz, "etcd3+http://{address}"),
            PROCESSES,
            "etcd3gw",
            phase_seconds=1.0,
        ),
        Contestant(
            "etcd-transactions",
            "two bare grpcio transactions",
            "raw",
            BareTransactions,
            frozenset({"transactions"}),
            "grpcio",
        ),
    ),
    ("pairs", "tasks", "handoff", "waiting", "contention", "crowd"),
    {"pairs": "etcd-transactions", "handoff": "etcd3", "waiting": "etcd3", "contention": "etcd3"},
    {
        "pairs": "One etcd on loopback, which writes to disk before it answers. The raw limit puts and "
        "deletes one key with a lease that is there already. python-etcd3 does not work with a protobuf of "
        "our time; it has an old one, in Python alone, in a place of its own.",
    },
    serve,
)
