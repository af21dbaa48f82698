"""Members of groups, for threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType

from ..client import Client, Lease
from ..core.lock_options import Duration
from ..errors import InvalidArgument
from ..recipes import assignment
from ..recipes import ownership as recipe
from ..recipes.ownership import Options
from .callbacks import Call, Callbacks
from .model import GroupInfo, Owner, describe
from .names import new_member_name

__all__ = ["Member", "groups", "join", "owner_of", "show"]

Callback = Callable[[int, Lease], object]
"""Takes the partition and its lease."""


def join(
    client: Client,
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
) -> Member:
    """Join a group, whose partitions are shared out among its members.

    group: its name.
    partitions: into how many parts its keys are divided; every member gives the same number.
    member: a name for this process that no other one has, such as ``"web-1"``. After a restart it gets its
        partitions back. None: a new name, and nothing is kept for it.
    ttl: seconds (or a timedelta) after which the others take over, if this process dies or stands still.
    drain: how long the work on a partition may take to stop after it was revoked.
    rejoin_within: how long the partitions of a member with a name are kept for it while it is away.
    on_assigned, on_revoked, on_lost: as the methods of the same names.

    Use it as a context manager, or call ``leave()`` at the end.
    """
    if not isinstance(client, Client):
        raise InvalidArgument(
            f"join takes a client of holdfast.connect(url); this is {type(client).__name__}"
            " (for a client of asyncio, use holdfast.ownership.aio)"
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
    callbacks = ThreadCallbacks(lambda state: Lease(client, state))
    callbacks.add("assigned", on_assigned)
    callbacks.add("revoked", on_revoked)
    callbacks.add("lost", on_lost)
    joined = recipe.Member(
        driver.client_state, options, driver.owner_prefix + f"member {options.member}", callbacks, driver.post
    )
    callbacks.wake_up = joined.wake_up
    driver.run(recipe.join(joined))
    return Member(client, joined, callbacks)


def owner_of(client: Client, group: str, key: str | bytes) -> Owner | None:
    """The member of a group that owns a key now, for processes that are no members; None: there is none."""
    info = show(client, group)
    return (
        None if info is None else info.owners[assignment.partition_of(recipe.check_key(key), info.partitions)]
    )


def show(client: Client, group: str) -> GroupInfo | None:
    """A group with its members and owners; None: there never was one of that name."""
    recipe.check_engine(client.guarantees)
    driver = client._driver
    found = driver.run(recipe.read_standing(driver.client_state, recipe.check_group(group)))
    return None if found is None else describe(found)


def groups(client: Client) -> list[GroupInfo]:
    """The groups that have members, or had some lately."""
    recipe.check_engine(client.guarantees)
    driver = client._driver
    names = driver.run(recipe.group_names(driver.client_state))
    return [info for name in names if (info := show(client, name)) is not None]


class ThreadCallbacks(Callbacks):
    """Calls the user's functions on threads of their own."""

    def _start_chain(self, partition: int) -> None:
        self._start_thread(partial(self._run_chain, partition))

    def _start(self, call: Call) -> None:
        self._start_thread(partial(self._run, call))

    @staticmethod
    def _start_thread(target: Callable[[], None]) -> None:
        try:
            threading.Thread(target=target, name="holdfast-partition", daemon=True).start()
        except RuntimeError:  # no more threads can be started
            target()

    def _run_chain(self, partition: int) -> None:
        while True:
            self._run(self._next_call(partition))
            if not self._has_more(partition):
                return

    def _run(self, call: Call) -> None:
        self._call(call)
        self._finish(call)

    def _report_loss(self, call: Call) -> None:
        self._call(call)
        self._finish_loss(call)

    def _call(self, call: Call) -> None:
        for function in self._functions_of(call):
            try:
                function(call.held.partition, call.held.lease)
            except BaseException as error:  # noqa: BLE001 - the other functions are called all the same
                self._failed(call, error)


class Member:
    """This process as a member of a group: each of its partitions belongs to one live member."""

    def __init__(self, client: Client, member: recipe.Member, callbacks: ThreadCallbacks) -> None:
        self._client = client
        self._member = member
        self._callbacks = callbacks
        self._thread = threading.Thread(target=self._take_part, name="holdfast-member", daemon=True)
        self._thread.start()

    def _take_part(self) -> None:
        with contextlib.suppress(InvalidArgument):  # the client is closed
            self._client._driver.run(recipe.take_part(self._member))

    def __repr__(self) -> str:
        return f"<holdfast.ownership.Member {self.name!r} of {self.group!r} owns {len(self.owned)}>"

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

    def owner_of(self, key: str | bytes) -> Owner | None:
        """The member that owns a key now, as the engine knows; None: there is none at the moment."""
        partition, driver = self.partition_of(key), self._client._driver
        found = driver.run(recipe.owner_of(driver.client_state, self.group, partition))
        return None if found is None else Owner(found.member, partition, found.token)

    def lease_of(self, partition: int) -> Lease:
        """The lease of a partition, whose ``token`` fences writes; NotHeld, if it is not this member's.

        It is there from ``on_assigned`` until ``on_revoked`` has returned.
        """
        lease: Lease = self._member.lease_of(partition)
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

    def leave(self, returning: bool = False) -> None:
        """Give up all partitions, each when its work has stopped, and leave the group. May be called again.

        returning: this member, which has a name, comes back soon: its partitions are kept for it.
        """
        self._member.leave(returning)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Member:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
