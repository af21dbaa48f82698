"""The asyncio API of single ownership: the same names; what does I/O is awaited.

from holdfast.ownership import aio as ownership

async with await ownership.join(locks, "orders", partitions=64) as member:
    member.owns("customer-7")
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any

from ..aio import AsyncClient, AsyncLease
from ..core.lock_options import Duration
from ..errors import InvalidArgument
from ..recipes import assignment
from ..recipes import ownership as recipe
from ..recipes.ownership import Options
from .callbacks import Call, Callbacks
from .model import GroupInfo, MemberInfo, Owner, describe
from .names import new_member_name, partition_of

__all__ = [
    "AsyncMember",
    "GroupInfo",
    "MemberInfo",
    "Owner",
    "groups",
    "join",
    "owner_of",
    "partition_of",
    "show",
]

Callback = Callable[[int, AsyncLease], object]
"""Takes the partition and its lease; may be async."""


async def join(
    client: AsyncClient,
    group: str,
    partitions: int = 64,
    member: str | None = None,
    *,
    ttl: Duration = recipe.TTL_SECONDS,
    drain: Duration = recipe.DRAIN_SECONDS,
    rejoin_within: Duration = recipe.REJOIN_SECONDS,
    on_assigned: Callback | None = None,
    on_revoked: Callback | None = None,
    on_lost: Callback | None = None,
) -> AsyncMember:
    """Join a group, whose partitions are shared out among its members.

    group: its name.
    partitions: into how many parts its keys are divided; every member gives the same number.
    member: a name for this process that no other one has, such as ``"web-1"``. After a restart it gets its
        partitions back. None: a new name, and nothing is kept for it.
    ttl: seconds (or a timedelta) after which the others take over, if this process dies or stands still.
    drain: how long the work on a partition may take to stop after it was revoked.
    rejoin_within: how long the partitions of a member with a name are kept for it while it is away.
    on_assigned, on_revoked, on_lost: as the methods of the same names.

    Use it with ``async with``, or call ``await member.leave()`` at the end.
    """
    if not isinstance(client, AsyncClient):
        raise InvalidArgument(
            f"join takes a client of holdfast.aio.connect(url); this is {type(client).__name__}"
            " (for a client of threads, use holdfast.ownership)"
        )
    driver = client._driver
    options = Options.checked(
        client.guarantees,
        group,
        partitions,
        member,
        ttl,
        drain,
        rejoin_within,
        new_member_name(driver.owner_prefix),
    )
    callbacks = _TaskCallbacks(lambda state: AsyncLease(client, state))
    callbacks.add("assigned", on_assigned)
    callbacks.add("revoked", on_revoked)
    callbacks.add("lost", on_lost)
    joined = recipe.Member(
        driver.client_state, options, driver.owner_prefix + f"member {options.member}", callbacks, driver.post
    )
    callbacks.wake_up = joined.wake_up
    await driver.run(recipe.join(joined))
    return AsyncMember(client, joined, callbacks)


async def owner_of(client: AsyncClient, group: str, key: str | bytes) -> Owner | None:
    """The member of a group that owns a key now, for processes that are no members; None: there is none."""
    info = await show(client, group)
    return (
        None if info is None else info.owners[assignment.partition_of(recipe.check_key(key), info.partitions)]
    )


async def show(client: AsyncClient, group: str) -> GroupInfo | None:
    """A group with its members and owners; None: there never was one of that name."""
    recipe.check_engine(client.guarantees)
    driver = client._driver
    found = await driver.run(recipe.read_standing(driver.client_state, recipe.check_group(group)))
    return None if found is None else describe(found)


async def groups(client: AsyncClient) -> list[GroupInfo]:
    """The groups that have members, or had some lately."""
    recipe.check_engine(client.guarantees)
    driver = client._driver
    names = await driver.run(recipe.group_names(driver.client_state))
    return [info for name in names if (info := await show(client, name)) is not None]


class _TaskCallbacks(Callbacks):
    """Calls the user's functions in tasks."""

    may_await = True

    def __init__(self, wrap: Callable[[Any], Any]) -> None:
        super().__init__(wrap)
        self._tasks: set[asyncio.Task[None]] = set()

    def _start_chain(self, partition: int) -> None:
        self._start_task(self._run_chain(partition))

    def _start(self, call: Call) -> None:
        self._start_task(self._run(call))

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name="holdfast-partition")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_chain(self, partition: int) -> None:
        has_more = True
        while has_more:
            try:
                await self._run(self._next_call(partition))
            finally:
                has_more = self._has_more(partition)

    async def _run(self, call: Call) -> None:
        try:
            await self._call(call)
        finally:
            self._finish(call)

    async def _report_loss(self, call: Call) -> None:
        try:
            await self._call(call)
        finally:
            self._finish_loss(call)

    async def _call(self, call: Call) -> None:
        for function in self._functions_of(call):
            try:
                result = function(call.held.partition, call.held.lease)
                if inspect.isawaitable(result):
                    await result
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                # It has cancelled its work, and waited for it.
            except Exception as error:  # noqa: BLE001 - the other functions are called all the same
                self._failed(call, error)


class AsyncMember:
    """This process as a member of a group: each of its partitions belongs to one live member."""

    def __init__(self, client: AsyncClient, member: recipe.Member, callbacks: _TaskCallbacks) -> None:
        self._client = client
        self._member = member
        self._callbacks = callbacks
        self._task = asyncio.create_task(self._take_part(), name="holdfast-member")

    async def _take_part(self) -> None:
        with contextlib.suppress(InvalidArgument):  # the client is closed
            await self._client._driver.run(recipe.take_part(self._member))

    def __repr__(self) -> str:
        return f"<holdfast.ownership.aio.AsyncMember {self.name!r} of {self.group!r} owns {len(self.owned)}>"

    @property
    def name(self) -> str:
        """The name of this member."""
        return self._member.options.member

    @property
    def group(self) -> str:
        return self._member.options.group

    @property
    def partitions(self) -> int:
        """How many partitions the group has."""
        return self._member.options.partitions

    @property
    def active(self) -> bool:
        """Whether it takes part. False: it left, its work does not stop, or it cannot reach the engine."""
        return self._member.is_present()

    @property
    def owned(self) -> frozenset[int]:
        """The partitions that this member owns now: new work on them may begin. Needs no I/O."""
        return self._member.owned()

    def owns(self, key: str | bytes) -> bool:
        """Whether this member owns the key's partition now: new work on it may begin. Needs no I/O."""
        return self._member.owns(self.partition_of(key))

    def partition_of(self, key: str | bytes) -> int:
        """The partition of a key: the same for every member of the group."""
        return self._member.partition_of(key)

    async def owner_of(self, key: str | bytes) -> Owner | None:
        """The member that owns a key now, as the engine knows; None: there is none at the moment."""
        partition, driver = self.partition_of(key), self._client._driver
        found = await driver.run(recipe.owner_of(driver.client_state, self.group, partition))
        return None if found is None else Owner(found.member, partition, found.token)

    def lease_of(self, partition: int) -> AsyncLease:
        """The lease of a partition, whose ``token`` fences writes; NotHeld, if it is not this member's.

        It is there from ``on_assigned`` until ``on_revoked`` has returned.
        """
        lease: AsyncLease = self._member.lease_of(partition)
        return lease

    def on_assigned(self, callback: Callback) -> Callback:
        """Call ``callback(partition, lease)`` for each partition that this member gets, and has got already.

        Before the first read: ``fencing.advance`` with the lease, where the data are guarded.
        """
        self._callbacks.add("assigned", callback)
        for held in list(self._member.held.values()):
            if held.overdue_at is None:
                self._callbacks.assigned(held)
        return callback

    def on_revoked(self, callback: Callback) -> Callback:
        """Call ``callback(partition, lease)`` when a partition is to move to another member.

        It finishes, or gives up, the work on the partition. The lease is released when it returns, or after
        ``drain`` seconds: then ``on_lost`` is called, and this member takes no part until it has returned.
        """
        self._callbacks.add("revoked", callback)
        return callback

    def on_lost(self, callback: Callback) -> Callback:
        """Call ``callback(partition, lease)`` when a partition was lost: stop at once, another member may own
        it."""
        self._callbacks.add("lost", callback)
        return callback

    async def leave(self, returning: bool = False) -> None:
        """Give up all partitions, each when its work has stopped, and leave the group. May be called again.

        returning: this member, which has a name, comes back soon: its partitions are kept for it.
        """
        self._member.leave(returning)
        if asyncio.current_task() is not self._task:
            await asyncio.wait([self._task])

    async def __aenter__(self) -> AsyncMember:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()
