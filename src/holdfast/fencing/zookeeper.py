"""Guards for data in ZooKeeper: a check of the ticket of a lease, and a fence node for tokens of any source.

A lease of ``zookeeper://`` is a node that goes with its session. So a transaction that checks that this node
is there does nothing once the grant is over, whatever the holder believes: ``zookeeper_check``. That holds
from the moment of the next grant, so there is nothing to advance.

Where the locks are elsewhere, or the token came as text, ``FencedZooKeeper`` keeps the newest mark in a node
of its own, and each write is conditional on the version that this node had when the rule decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

from ..errors import InvalidArgument, StaleToken
from ..model import Fence
from .arguments import Presentable, checked_resource, checked_source, refuse_read_lease
from .mark_text import mark_from_text, mark_text
from .plans import Commit, Found, Plan, Read, conditional, run
from .writers import advancing_mark, moving, ticket_of, writing_mark

__all__ = ["FencedZooKeeper", "ZooKeeperCheck", "zookeeper_check"]

FOLDER: Final = "/holdfast-fences"
ANY_VERSION: Final = -1

Write = Callable[[Any], object]
"""Adds operations to a ``kazoo`` transaction."""


class ZooKeeperCheck:
    """The check that was put into a transaction, and what its result says."""

    __slots__ = ("_fence", "_name", "_position")

    def __init__(self, name: str, fence: Fence, position: int) -> None:
        self._name = name
        self._fence = fence
        self._position = position

    def verify(self, results: Sequence[object]) -> None:
        """Raise StaleToken if this check is why the transaction did nothing. Other errors are left alone."""
        from kazoo.exceptions import NoNodeError

        if isinstance(results[self._position], NoNodeError):
            error = StaleToken(
                f"the grant of token {self._fence.token} of {self._name!r} is over: its ticket is gone from"
                " ZooKeeper, and another holder may be at work. The transaction did nothing: drop what was"
                " computed, and acquire the lock again to go on"
            )
            error.resource, error.token = self._name, self._fence.token
            raise error


def zookeeper_check(transaction: Any, lease: Any) -> ZooKeeperCheck:
    """Add a check to a ``kazoo`` transaction, so that it does nothing once this grant is over::

        transaction = client.transaction()
        check = fencing.zookeeper_check(transaction, lease)
        transaction.set_data("/total", b"5")
        check.verify(transaction.commit())  # StaleToken: nothing was written

    ``lease`` is one of ``zookeeper://``, of the same ensemble. Read leases are refused, and leases that are
    lost: before any request. Each ticket has a path of its own, so that it is there is all there is to check.
    """
    refuse_read_lease(lease)
    handle = ticket_of(lease, "zookeeper")
    path, chroot = handle.path, transaction.client.chroot
    if chroot:
        if not path.startswith(f"{chroot}/"):
            raise InvalidArgument(
                f"this client sees only what is below {chroot}, and the ticket is {path}: give it no"
                f" chroot, or connect the locks with zookeeper://…{chroot}"
            )
        path = path[len(chroot) :]
    transaction.check(path, ANY_VERSION)
    return ZooKeeperCheck(lease.name, lease.fence, len(transaction.operations) - 1)


class FencedZooKeeper:
    """Writes to ZooKeeper that a stale holder cannot make::

        totals = FencedZooKeeper(client, "invoices")
        with locks.lock("invoices") as lease:
            totals.advance(lease)             # before the first read
            totals.set("/total", b"5", lease)  # StaleToken if a newer holder has been here

    ``client`` is the caller's own ``KazooClient``, started. ``resource`` is what the lock protects, usually
    the lock's own name. Its fence is one node in ``folder``, of some 150 bytes, and is kept until it is
    deleted: counters, which tokens of ZooKeeper are, do not tell their age. A write is two requests. To make
    one again whose reply was lost is safe: the same grant passes again. With asyncio, call it in a thread.
    """

    __slots__ = ("_client", "_folder", "_path", "_resource")

    def __init__(self, client: Any, resource: str, folder: str = FOLDER) -> None:
        if not callable(getattr(client, "transaction", None)):
            raise InvalidArgument(f"{type(client).__name__} is no client of kazoo: pass a KazooClient")
        self._client = client
        self._resource = checked_resource(resource)
        self._folder = folder
        self._path = f"{folder}/{_node(resource)}"

    def set(self, path: str, value: bytes, lease: Presentable) -> Any:
        """Set the data of a node that is there. Its new ``ZnodeStat``."""
        return self.commit(lambda transaction: transaction.set_data(path, value), lease)[0]

    def delete(self, path: str, lease: Presentable) -> None:
        """Delete a node."""
        self.commit(lambda transaction: transaction.delete(path), lease)

    def commit(self, write: Write, lease: Presentable) -> list[Any]:
        """A transaction of the caller's own: ``write`` adds its operations. Their results.

        ``write`` is called anew, with a new transaction, where others changed the fence in between.
        """
        return self._committed(conditional(self._resource, writing_mark(lease)), write)

    def advance(self, lease: Presentable) -> None:
        """Shut older holders out, **before the first read**: else one of them could still write after it."""
        self._committed(conditional(self._resource, advancing_mark(lease)), _nothing)

    def newest(self) -> Fence | None:
        """The newest grant that the guard has seen, None if none. For people and tests: it guards nothing."""
        self._client.sync(self._folder)
        mark = self._read().mark
        return None if mark is None else mark.fence

    def move(self, source: str) -> None:
        """Hand the resource to another source of tokens, deliberately: give it ``lease.fence.source``."""
        self._committed(moving(self._resource, checked_source(source)), _nothing)

    def _committed(self, plan: Plan[None], write: Write) -> list[Any]:
        found = Found(None, None)
        results: list[Any] = []
        reads = 0

        def carry_out(request: Read | Commit) -> Found | bool:
            nonlocal found, results, reads
            if isinstance(request, Read):
                if reads:
                    # The server that this client reads from may lag behind what it refused just now.
                    self._client.sync(self._folder)
                reads += 1
                found = self._read()
                return found
            is_committed, results = self._commit(request, found, write)
            return is_committed

        run(plan, carry_out)
        return results

    def _read(self) -> Found:
        from kazoo.exceptions import NoNodeError

        try:
            data, stat = self._client.get(self._path)
        except NoNodeError:
            return Found(None, None)
        return Found(mark_from_text(data, f"the node {self._path}"), stat.version)

    def _commit(self, request: Commit, found: Found, write: Write) -> tuple[bool, list[Any]]:
        from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

        transaction = self._client.transaction()
        text = mark_text(request.mark).encode()
        if request.version is None:
            self._client.ensure_path(self._folder)
            transaction.create(self._path, text)
        elif request.mark == found.mark:
            # The version stays as well: writes of one grant do not get in each other's way.
            transaction.check(self._path, request.version)
        else:
            transaction.set_data(self._path, text, request.version)
        write(transaction)
        first, *results = transaction.commit()
        if isinstance(first, BadVersionError | NoNodeError | NodeExistsError):
            return False, []
        _raise_first_of([first, *results])
        return True, results


def _nothing(transaction: object) -> None:
    """The fence alone is written."""


def _raise_first_of(results: Sequence[object]) -> None:
    """The error of the operation that failed; those of the others only say that they were undone with it."""
    from kazoo.exceptions import RolledBackError, RuntimeInconsistency

    errors = [result for result in results if isinstance(result, Exception)]
    for error in errors:
        if not isinstance(error, RolledBackError | RuntimeInconsistency):
            raise error
    if errors:
        raise errors[0]


def _node(resource: str) -> str:
    """Any text as the name of a node; ``.`` and ``..`` would be taken for something else."""
    if resource in (".", ".."):
        return resource.replace(".", "%2E")
    return quote(resource, safe="")
