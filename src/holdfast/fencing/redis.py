"""The guard for data in Redis: check and write in one script, through the caller's own client of redis-py.

The newest mark of a resource is one string beside the data, ``holdfast:fence:{invoices}``. In a Cluster a
script reaches the keys of one slot alone, so the data's keys carry the resource's hash tag:
``total:{invoices}``. A resource that brings a tag of its own (``orders/{42}``) is in the slot of that
tag.

``scripts/fence.lua`` is the rule of ``rule.py`` once more; a differential test holds the two together.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from ..errors import HoldfastError, InvalidArgument, StaleToken
from ..model import Fence
from .arguments import Presentable, checked_resource, checked_source
from .mark_text import mark_from_text, mark_text
from .redis_scripts import Script, fenced, fenced_script, plain
from .refusal import stale_token
from .rule import Mark, Refuse, decide, moved
from .writers import advancing_mark, writing_mark

__all__ = ["AsyncFencedRedis", "FencedRedis"]

Key = str | bytes
Value = str | bytes | int | float
Fields = Mapping[str, Value] | Mapping[bytes, Value]

Done = TypeVar("Done")

EXPIRIES: Final = {"EX", "PX", "EXAT", "PXAT", "KEEPTTL"}
PREFIX: Final = b"holdfast:fence:"
DAYS_KEPT: Final = 7
"""``RETENTION`` of ``scripts/fence.lua``."""


class RunsScripts(Protocol):
    """A client of redis-py, as far as its type can be given without importing it."""

    def eval(self, script: Any, numkeys: int, *keys_and_args: Any) -> Any: ...

    def evalsha(self, sha: str, numkeys: int, *keys_and_args: Any) -> Any: ...


class FencedRedis:
    """Writes to Redis that a stale holder cannot make::

        orders = FencedRedis(client, "orders/{42}")
        with locks.lock("orders/{42}") as lease:
            orders.advance(lease)                        # before the first read
            total = int(client.get("total:{42}") or 0)
            orders.set("total:{42}", total + 10, lease)  # StaleToken if a newer holder has been here

    ``client`` is the caller's own: ``redis.Redis`` or ``redis.RedisCluster``, with any settings.
    ``resource`` is what the lock protects, usually the lock's own name.

    Each call is one request, and one script: the check and the write happen together or not at all. Where
    the reply is lost, a client of redis-py may send the request again by itself, as its ``retry`` says. The
    same grant passes again, so that is safe for ``set``, ``hset``, ``delete``, ``advance`` and ``move``; see
    ``eval`` for scripts.

    A fence to which no grant is presented is kept for nine days if its tokens are those of a clock, and
    for ever if they are counted (etcd, ZooKeeper). A clock token that is older than seven days is refused
    where there is no fence, so no stale holder outlives its fence. What an eviction takes away nothing can
    replace: the server needs ``maxmemory-policy noeviction``.
    """

    __slots__ = ("_client", "_guard")

    def __init__(self, client: RunsScripts, resource: str) -> None:
        self._guard = _Guard(client, resource, awaits=False)
        self._client = client

    def __repr__(self) -> str:
        return f"<FencedRedis {self._guard.resource!r}>"

    @property
    def key(self) -> bytes:
        """Where the fence of the resource is."""
        return self._guard.key

    def set(
        self,
        key: Key,
        value: Value,
        lease: Presentable,
        *,
        ex: int | None = None,
        px: int | None = None,
        exat: int | None = None,
        pxat: int | None = None,
        keepttl: bool = False,
        nx: bool = False,
        xx: bool = False,
    ) -> bool:
        """``SET``, with its options. False: ``nx`` or ``xx`` kept it from being set."""
        options = {"EX": ex, "PX": px, "EXAT": exat, "PXAT": pxat, "KEEPTTL": keepttl, "NX": nx, "XX": xx}
        return self._run(self._guard.set(key, value, lease, options))

    def delete(self, *keys: Key, lease: Presentable) -> int:
        """``DEL``. How many of the keys there were."""
        return self._run(self._guard.delete(keys, lease))

    def hset(self, key: Key, mapping: Fields, lease: Presentable) -> int:
        """``HSET``. How many of the fields are new."""
        return self._run(self._guard.hset(key, mapping, lease))

    def eval(self, script: str, keys: Sequence[Key], args: Sequence[Value], lease: Presentable) -> Any:
        """Run a script of the caller's own, if the grant is current; it sees its ``KEYS`` and ``ARGV`` alone.

        The script is code, written by the programmer: never put values into its text, pass them in
        ``args``. Like every script it may run twice where a reply is lost: see that this does no harm, or
        give the client ``retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0)``.
        """
        return self._run(self._guard.eval(script, keys, args, lease))

    def advance(self, lease: Presentable) -> None:
        """Shut older holders out, **before the first read**: else one of them could still write after it."""
        self._run(self._guard.advance(lease))

    def newest(self) -> Fence | None:
        """The newest grant that the guard has seen, None if none. For people and tests: it guards nothing."""
        return self._run(self._guard.newest())

    def move(self, source: str) -> None:
        """Hand the resource to another source of tokens, deliberately: give it ``lease.fence.source``."""
        self._run(self._guard.move(source))

    def _run(self, request: Run[Done]) -> Done:
        guard, words = self._guard, request.words
        try:
            reply = self._client.evalsha(request.script.sha1, *words)
        except guard.no_script:
            reply = self._client.eval(request.script.text, *words)
        except guard.other_slot as error:
            raise guard.in_other_slot() from error
        return request.finish(guard.result(reply, request.mark))


class AsyncFencedRedis:
    """The same for ``redis.asyncio``: the names of ``FencedRedis``, awaited."""

    __slots__ = ("_client", "_guard")

    def __init__(self, client: RunsScripts, resource: str) -> None:
        self._guard = _Guard(client, resource, awaits=True)
        self._client = client

    def __repr__(self) -> str:
        return f"<AsyncFencedRedis {self._guard.resource!r}>"

    @property
    def key(self) -> bytes:
        """Where the fence of the resource is."""
        return self._guard.key

    async def set(
        self,
        key: Key,
        value: Value,
        lease: Presentable,
        *,
        ex: int | None = None,
        px: int | None = None,
        exat: int | None = None,
        pxat: int | None = None,
        keepttl: bool = False,
        nx: bool = False,
        xx: bool = False,
    ) -> bool:
        """``SET``, with its options. False: ``nx`` or ``xx`` kept it from being set."""
        options = {"EX": ex, "PX": px, "EXAT": exat, "PXAT": pxat, "KEEPTTL": keepttl, "NX": nx, "XX": xx}
        return await self._run(self._guard.set(key, value, lease, options))

    async def delete(self, *keys: Key, lease: Presentable) -> int:
        """``DEL``. How many of the keys there were."""
        return await self._run(self._guard.delete(keys, lease))

    async def hset(self, key: Key, mapping: Fields, lease: Presentable) -> int:
        """``HSET``. How many of the fields are new."""
        return await self._run(self._guard.hset(key, mapping, lease))

    async def eval(self, script: str, keys: Sequence[Key], args: Sequence[Value], lease: Presentable) -> Any:
        """Run a script of the caller's own, if the grant is current. See ``FencedRedis.eval``."""
        return await self._run(self._guard.eval(script, keys, args, lease))

    async def advance(self, lease: Presentable) -> None:
        """Shut older holders out, **before the first read**."""
        await self._run(self._guard.advance(lease))

    async def newest(self) -> Fence | None:
        """The newest grant that the guard has seen, None if none."""
        return await self._run(self._guard.newest())

    async def move(self, source: str) -> None:
        """Hand the resource to another source of tokens, deliberately."""
        await self._run(self._guard.move(source))

    async def _run(self, request: Run[Done]) -> Done:
        guard, words = self._guard, request.words
        try:
            reply = await self._client.evalsha(request.script.sha1, *words)
        except guard.no_script:
            reply = await self._client.eval(request.script.text, *words)
        except guard.other_slot as error:
            raise guard.in_other_slot() from error
        return request.finish(guard.result(reply, request.mark))


# --- what both do -------------------------------------------------------------------------------


class Run(NamedTuple, Generic[Done]):
    """Run a script: one request, whatever is asked for."""

    script: Script
    words: tuple[Any, ...]
    """The number of keys, the keys, and the arguments."""
    finish: Callable[[Any], Done]
    """What the caller gets of what the script returned."""
    mark: Mark | None = None
    """The mark that is presented."""


class _Guard:
    """The requests of one resource, and what their replies mean. No I/O."""

    __slots__ = ("_presented", "_slot_of", "key", "no_script", "other_slot", "resource")

    def __init__(self, client: RunsScripts, resource: str, *, awaits: bool) -> None:
        self.resource = checked_resource(resource)
        self.key = fence_key(resource)
        _check_client(client, awaits)
        from redis.crc import key_slot
        from redis.exceptions import ClusterCrossSlotError, NoScriptError

        self.no_script, self.other_slot = NoScriptError, ClusterCrossSlotError
        # One server has no slots: there keys are named as the caller likes.
        self._slot_of: Callable[[bytes], int] | None = key_slot if hasattr(client, "nodes_manager") else None
        self._presented: tuple[weakref.ref[Any], Mark, str] | None = None

    def set(self, key: Key, value: Value, lease: Presentable, options: Mapping[str, int | None]) -> Run[bool]:
        given = [each for each in options.items() if each[1] is not None and each[1] is not False]
        words: list[Any] = [value]
        if given:
            names = {word for word, _ in given}
            if len(names & EXPIRIES) > 1 or {"NX", "XX"} <= names:
                raise InvalidArgument("give one of ex, px, exat, pxat and keepttl, and one of nx and xx")
            for word, option in given:
                words += (word,) if option is True else (word, option)
        return self._fenced(fenced("set"), (key,), words, lease, _is_set)

    def delete(self, keys: Sequence[Key], lease: Presentable) -> Run[int]:
        if not keys:
            raise InvalidArgument("no keys are given: delete('total:{invoices}', lease=lease)")
        return self._fenced(fenced("delete"), keys, (), lease, int)

    def hset(self, key: Key, mapping: Fields, lease: Presentable) -> Run[int]:
        if not isinstance(mapping, Mapping):
            raise InvalidArgument(
                f"{type(mapping).__name__} is no mapping of fields to values: hset(key, {{'a': 5}}, lease)"
            )
        if not mapping:
            raise InvalidArgument("the mapping is empty: HSET needs a field at least")
        words = [each for field in mapping.items() for each in field]
        return self._fenced(fenced("hset"), (key,), words, lease, int)

    def eval(self, script: str, keys: Sequence[Key], args: Sequence[Value], lease: Presentable) -> Run[Any]:
        if not isinstance(script, str):
            raise InvalidArgument(f"the script is {type(script).__name__}, not text")
        if script.startswith("#!"):
            raise InvalidArgument(
                "the script begins with a line '#!lua', which holds for a whole script: leave it out,"
                " for this one runs as a function within the guard's"
            )
        if isinstance(keys, str | bytes) or isinstance(args, str | bytes):
            raise InvalidArgument(
                "keys and args are sequences: eval(script, ['total:{invoices}'], [10], lease)"
            )
        return self._fenced(fenced_script(script), keys, args, lease, _as_it_is)

    def advance(self, lease: Presentable) -> Run[None]:
        mark = advancing_mark(lease)
        return Run(fenced("advance"), (1, self.key, mark_text(mark)), _nothing, mark)

    def newest(self) -> Run[Fence | None]:
        return Run(plain("newest"), (1, self.key), self._fence_in)

    def move(self, source: str) -> Run[None]:
        beginning = moved(None, checked_source(source))
        return Run(plain("move"), (1, self.key, mark_text(beginning)), _nothing)

    def _fenced(
        self,
        script: Script,
        keys: Sequence[Key],
        args: Sequence[Any],
        lease: Presentable,
        finish: Callable[[Any], Done],
    ) -> Run[Done]:
        mark, text = self._presenting(lease)
        self._check_keys(keys)
        return Run(script, (len(keys) + 1, self.key, *keys, text, *args), finish, mark)

    def result(self, reply: Sequence[Any], mark: Mark | None) -> Any:
        """What the script returned behind the rule."""
        if reply[0] == 0:
            raise self._refusal(reply[1], mark)
        result = reply[1] if len(reply) > 1 else None
        if isinstance(result, Exception):  # an error within the answer of a script
            raise result
        return result

    def _fence_in(self, stored: str | bytes | None) -> Fence | None:
        return None if stored is None else mark_from_text(stored, self._place).fence

    def _presenting(self, lease: Presentable) -> tuple[Mark, str]:
        """A lease presents the same mark every time: it is remembered for the one seen last."""
        known = self._presented
        if known is not None and known[0]() is lease:
            lease.check()
            return known[1], known[2]
        mark = writing_mark(lease)
        text = mark_text(mark)
        if hasattr(lease, "check"):
            self._presented = (weakref.ref(lease), mark, text)
        return mark, text

    def _check_keys(self, keys: Sequence[Key]) -> None:
        for key in keys:
            if not isinstance(key, str | bytes | bytearray | memoryview):
                raise InvalidArgument(
                    f"key {key!r} is {type(key).__name__}: keys are text or bytes, one argument for each"
                )
            name = key.encode() if isinstance(key, str) else bytes(key)
            if name == self.key:
                raise InvalidArgument(
                    f"{key!r} is where the fence of {self.resource!r} is: only the guard writes it"
                )
            if self._slot_of is not None and self._slot_of(name) != self._slot_of(self.key):
                raise self.in_other_slot(repr(key))

    def in_other_slot(self, key: str = "one of the keys") -> InvalidArgument:
        tag = _tag(self.key).decode(errors="replace")
        return InvalidArgument(
            f"{key} is in another slot of the Cluster than the fence of {self.resource!r}, and a script"
            f" reaches one slot alone: give the key the hash tag {{{tag}}}, for example 'total:{{{tag}}}', or"
            " name the resource by the tag that the keys have, for example 'orders/{42}'. Nothing was written"
        )

    @property
    def _place(self) -> str:
        return f"the key {self.key.decode(errors='replace')!r}"

    def _refusal(self, reply: str | bytes, mark: Mark | None) -> HoldfastError:
        if not reply and mark is not None:
            return self._too_old(mark)
        stored = mark_from_text(reply, self._place)
        decision = None if mark is None else decide(stored, mark)
        if mark is not None and isinstance(decision, Refuse):
            return stale_token(self.resource, stored, mark, decision.why)
        return HoldfastError(f"{self._place} was refused against the rule. Nothing was written")

    def _too_old(self, mark: Mark) -> StaleToken:
        error = StaleToken(
            f"token {mark.token} of {self.resource!r} was granted more than {DAYS_KEPT} days ago, and its"
            " guard has no fence any more that would tell whether a newer holder came since. Nothing was"
            " written: acquire the lock again to go on"
        )
        error.resource, error.token = self.resource, mark.token
        return error


def _is_set(reply: object) -> bool:
    return reply is not None


def _as_it_is(reply: Any) -> Any:
    return reply


def _nothing(reply: object) -> None:
    """There is no result."""


def fence_key(resource: str) -> bytes:
    """Where the fence is: in the slot of the resource's hash tag, or of the resource itself.

    Redis looks at the first ``{`` and the first ``}`` behind it. A resource in our braces must not begin
    with ``}``, or the tag would be empty: ``%`` is put before such a resource, and before a resource that
    begins with ``%``.
    """
    name = resource.encode()
    begin = name.find(b"{")
    if begin >= 0 and name.find(b"}", begin + 1) > begin + 1:
        return PREFIX + b":" + name
    return PREFIX + (b"{%" if name[:1] in b"}%" else b"{") + name + b"}"


def _tag(key: bytes) -> bytes:
    begin = key.index(b"{") + 1
    return key[begin : key.index(b"}", begin)]


def _check_client(client: object, awaits: bool) -> None:
    execute = getattr(client, "execute_command", None)
    if execute is None or not hasattr(client, "evalsha"):
        raise InvalidArgument(
            f"{type(client).__module__}.{type(client).__qualname__} is no client of redis-py: pass"
            " redis.Redis or redis.RedisCluster, or their twins of redis.asyncio"
        )
    if any(each.__name__.endswith("Pipeline") for each in type(client).__mro__):
        raise InvalidArgument("a pipeline answers later, and a refusal would come too late: pass its client")
    if inspect.iscoroutinefunction(execute) != awaits:
        here, there = ("AsyncFencedRedis", "FencedRedis") if awaits else ("FencedRedis", "AsyncFencedRedis")
        raise InvalidArgument(f"{here} cannot use this client: pass it to {there}")
