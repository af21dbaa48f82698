"""Guards for data in etcd: compares on the ticket of a lease, and a fence key for tokens of any source.

A lease of ``etcd://`` is a key that goes with its session. So a transaction that compares the revision at
which that key was made does nothing once the grant is over, whatever the holder believes: ``etcd_compares``.
That holds from the moment of the next grant, so there is nothing to advance.

Where the locks are elsewhere, or the token came as text, ``FencedEtcd`` keeps the newest mark in a key beside
the data, and each write is conditional on that key being as it was when the rule decided.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from ..errors import EngineUnavailable, InvalidArgument
from ..model import Fence
from .arguments import Presentable, checked_resource, checked_source, refuse_read_lease
from .mark_text import mark_from_text, mark_text
from .plans import Commit, Found, Plan, Read, conditional, run, run_async
from .writers import advancing_mark, moving, ticket_of, writing_mark

__all__ = ["AsyncFencedEtcd", "EtcdCompare", "FencedEtcd", "etcd_compares"]

Bytes = str | bytes
Json = Mapping[str, Any]
PREFIX: Final = "holdfast-fences/"


@dataclass(frozen=True, slots=True)
class EtcdCompare:
    """A condition for a transaction of the caller's own: this key was made at this revision, and is there."""

    key: bytes
    create_revision: int

    def json(self) -> dict[str, str]:
        """For the JSON gateway, and for clients that speak it."""
        return {
            "target": "CREATE",
            "result": "EQUAL",
            "key": _b64(self.key),
            "create_revision": str(self.create_revision),
        }

    def message(self, compare: Any) -> Any:
        """For gRPC: ``compare`` is the caller's class of the message ``etcdserverpb.Compare``."""
        return compare(
            target=compare.CREATE,
            result=compare.EQUAL,
            key=self.key,
            create_revision=self.create_revision,
        )


def etcd_compares(lease: Any) -> tuple[EtcdCompare, ...]:
    """What a transaction in the same etcd has to compare, so that it does nothing once this grant is over.

    ``lease`` is one of ``etcd://``. Read leases are refused, and leases that are lost: before any request.
    """
    refuse_read_lease(lease)
    handle = ticket_of(lease, "etcd")
    return (EtcdCompare(handle.key, handle.created),)


class FencedEtcd:
    """Writes to etcd that a stale holder cannot make::

        def call(path, body):  # any HTTP client will do; this is the JSON gateway of etcd 3.4 and newer
            return httpx.post(f"http://127.0.0.1:2379{path}", json=body).raise_for_status().json()

        totals = FencedEtcd(call, "invoices")
        with locks.lock("invoices") as lease:
            totals.advance(lease)            # before the first read
            totals.put("total", "5", lease)  # StaleToken if a newer holder has been here

    ``resource`` is what the lock protects, usually the lock's own name. Its fence is one key below
    ``prefix``, of some 150 bytes, and is kept until it is deleted: counters, which tokens of etcd are, do
    not tell their age. A write is two requests. To send one again whose reply was lost is safe: the same
    grant passes again.
    """

    __slots__ = ("_call", "_guard")

    def __init__(self, call: Callable[[str, Json], Json], resource: str, prefix: str = PREFIX) -> None:
        self._guard = _Guard(call, resource, prefix)
        self._call = call

    def put(self, key: Bytes, value: Bytes, lease: Presentable, etcd_lease: int = 0) -> None:
        """Put one key, on a lease of etcd's own if one is given."""
        run(self._guard.put(key, value, lease, etcd_lease), self._carry_out)

    def delete(self, key: Bytes, lease: Presentable) -> bool:
        """Delete one key. Whether it was there."""
        return run(self._guard.delete(key, lease), self._carry_out)

    def transaction(
        self,
        lease: Presentable,
        success: Sequence[Json],
        compare: Sequence[Json] = (),
        failure: Sequence[Json] = (),
    ) -> Json:
        """A transaction of the caller's own, in the gateway's JSON. What etcd answered to it."""
        return run(self._guard.transaction(lease, success, compare, failure), self._carry_out)

    def advance(self, lease: Presentable) -> None:
        """Shut older holders out, **before the first read**: else one of them could still write after it."""
        run(self._guard.advance(lease), self._carry_out)

    def newest(self) -> Fence | None:
        """The newest grant that the guard has seen, None if none. For people and tests: it guards nothing."""
        return run(self._guard.newest(), self._carry_out)

    def move(self, source: str) -> None:
        """Hand the resource to another source of tokens, deliberately: give it ``lease.fence.source``."""
        run(self._guard.move(source), self._carry_out)

    def _carry_out(self, request: _Call) -> Json:
        return self._call(request.path, request.body)


class AsyncFencedEtcd:
    """The same with a ``call`` that is awaited: the names of ``FencedEtcd``, awaited."""

    __slots__ = ("_call", "_guard")

    def __init__(
        self, call: Callable[[str, Json], Awaitable[Json]], resource: str, prefix: str = PREFIX
    ) -> None:
        self._guard = _Guard(call, resource, prefix)
        self._call = call

    async def put(self, key: Bytes, value: Bytes, lease: Presentable, etcd_lease: int = 0) -> None:
        """Put one key, on a lease of etcd's own if one is given."""
        await run_async(self._guard.put(key, value, lease, etcd_lease), self._carry_out)

    async def delete(self, key: Bytes, lease: Presentable) -> bool:
        """Delete one key. Whether it was there."""
        return await run_async(self._guard.delete(key, lease), self._carry_out)

    async def transaction(
        self,
        lease: Presentable,
        success: Sequence[Json],
        compare: Sequence[Json] = (),
        failure: Sequence[Json] = (),
    ) -> Json:
        """A transaction of the caller's own, in the gateway's JSON. What etcd answered to it."""
        return await run_async(self._guard.transaction(lease, success, compare, failure), self._carry_out)

    async def advance(self, lease: Presentable) -> None:
        """Shut older holders out, **before the first read**."""
        await run_async(self._guard.advance(lease), self._carry_out)

    async def newest(self) -> Fence | None:
        """The newest grant that the guard has seen, None if none."""
        return await run_async(self._guard.newest(), self._carry_out)

    async def move(self, source: str) -> None:
        """Hand the resource to another source of tokens, deliberately."""
        await run_async(self._guard.move(source), self._carry_out)

    async def _carry_out(self, request: _Call) -> Json:
        return await self._call(request.path, request.body)


# --- what both do -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the gateway, answered by its JSON."""

    path: str
    body: Json


class _Guard:
    """The plans of one resource. Yields ``_Call``, is sent the answer. No I/O."""

    __slots__ = ("_key", "_resource")

    def __init__(self, call: object, resource: str, prefix: str) -> None:
        if not callable(call):
            raise InvalidArgument(
                f"call is {type(call).__name__}: pass a function of path and body that asks etcd's gateway"
            )
        self._resource = checked_resource(resource)
        self._key = _b64(prefix + quote(resource, safe=""))

    def put(self, key: Bytes, value: Bytes, lease: Presentable, etcd_lease: int) -> Plan[None]:
        act = {"key": _b64(key), "value": _b64(value), "lease": str(etcd_lease)}
        yield from self.transaction(lease, [{"request_put": act}], (), ())

    def delete(self, key: Bytes, lease: Presentable) -> Plan[bool]:
        act = {"request_delete_range": {"key": _b64(key)}}
        answer = yield from self.transaction(lease, [act], (), ())
        return int(answer["responses"][0]["response_delete_range"].get("deleted", 0)) > 0

    def transaction(
        self, lease: Presentable, success: Sequence[Json], compare: Sequence[Json], failure: Sequence[Json]
    ) -> Plan[Json]:
        mark = writing_mark(lease)
        own = {"compare": list(compare), "success": list(success), "failure": list(failure)}
        answer = yield from self._committed(conditional(self._resource, mark), [{"request_txn": own}])
        return answer["responses"][-1]["response_txn"]  # type: ignore[no-any-return]  # JSON of etcd's

    def advance(self, lease: Presentable) -> Plan[None]:
        yield from self._committed(conditional(self._resource, advancing_mark(lease)), [])

    def newest(self) -> Plan[Fence | None]:
        answer = yield _Call("/v3/kv/range", {"key": self._key})
        mark = self._found(_checked(answer)).mark
        return None if mark is None else mark.fence

    def move(self, source: str) -> Plan[None]:
        yield from self._committed(moving(self._resource, checked_source(source)), [])

    def _committed(self, plan: Plan[None], acts: Sequence[Json]) -> Plan[Json]:
        """A plan of the conditional form as calls of etcd. What it answered to the transaction at last.

        The caller's acts are a transaction within ours: their own conditions are theirs, and tell nothing of
        the guard.
        """
        answer: Json = {}
        found = Found(None, "0")
        refused: Json | None = None
        try:
            request = next(plan)
            while True:
                if isinstance(request, Read):
                    # A transaction that failed has read the fence in the same step.
                    seen = refused or _checked((yield _Call("/v3/kv/range", {"key": self._key})))
                    found, refused = self._found(seen), None
                    request = plan.send(found)
                else:
                    answer = _checked((yield _Call("/v3/kv/txn", self._transaction(request, found, acts))))
                    is_committed = bool(answer.get("succeeded"))
                    refused = None if is_committed else answer["responses"][0]["response_range"]
                    request = plan.send(is_committed)
        except StopIteration:
            return answer

    def _transaction(self, request: Commit, found: Found, acts: Sequence[Json]) -> Json:
        unchanged = {
            "target": "MOD",
            "result": "EQUAL",
            "key": self._key,
            "mod_revision": str(request.version),
        }
        # Where the mark stays, so does its revision: writes of one grant do not get in each other's way.
        store = {"request_put": {"key": self._key, "value": _b64(mark_text(request.mark))}}
        stored = [] if request.mark == found.mark else [store]
        return {
            "compare": [unchanged],
            "success": [*stored, *acts],
            "failure": [{"request_range": {"key": self._key}}],
        }

    def _found(self, answer: Json) -> Found:
        kvs = answer.get("kvs", [])
        if not kvs:
            return Found(None, "0")
        text = base64.b64decode(kvs[0].get("value", ""))
        mark = mark_from_text(text, f"the fence of {self._resource!r}")
        return Found(mark, kvs[0]["mod_revision"])


def _checked(answer: Any) -> Json:
    """An answer of the gateway; every one has a header."""
    if isinstance(answer, Mapping) and "header" in answer:
        return answer
    said = answer.get("error", answer) if isinstance(answer, Mapping) else answer
    raise EngineUnavailable(
        f"etcd answered {str(said)[:200]!r}; have `call` raise an error for answers that are none"
        " (raise_for_status). Whether something was written is not known: the same grant may write again"
    )


def _b64(data: Bytes) -> str:
    if not isinstance(data, str | bytes):
        raise InvalidArgument(f"{type(data).__name__} is neither text nor bytes: etcd keeps bytes")
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode("ascii")
