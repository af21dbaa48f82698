"""Leader election, for asyncio."""

from __future__ import annotations

import logging
import weakref
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from ...aio import AsyncLease, AsyncLock, _current_task
from ...core.lock_options import Duration, IfLost
from ...errors import EngineUnavailable, HoldfastError, LockLost
from ...model import Leader
from ...protocols.locks import LockCore
from ...recipes import election as recipe
from ..leadership import BaseLeadership

if TYPE_CHECKING:
    from ...aio import AsyncClient

__all__ = ["AsyncCampaign", "AsyncElection", "AsyncLeadership", "AsyncTerm"]

L = TypeVar("L", bound="AsyncLeadership")

log = logging.getLogger("holdfast")


class AsyncElection:
    """An election: one of the candidates of its name, in all processes, is the leader at a time."""

    __slots__ = ("_client", "_election")

    def __init__(self, client: AsyncClient, name: str, value: bytes, ttl: Duration, grace: Duration) -> None:
        self._client = client
        self._election = recipe.Election(client.guarantees, name, value, ttl, grace)

    def __repr__(self) -> str:
        return f"<holdfast.AsyncElection {self.name!r} ttl={self._election.spec.ttl:g}>"

    @property
    def name(self) -> str:
        return self._election.name

    @property
    def lock_name(self) -> str:
        """The name of the lock that the leader holds, for ``inspect`` and ``break_lock``."""
        return self._election.record

    def campaign(self, timeout: Duration | None = None) -> AsyncCampaign:
        """``async with election.campaign() as leadership:`` waits to be elected, and leads while the body
        runs. At a loss the body is cancelled, and LockLost is raised when it has ended.

        timeout: how long to wait: seconds or a timedelta; 0 tries once, None or -1 waits for ever. If it was
            not elected in time, LockTimeout is raised and the body does not run.
        """
        return AsyncCampaign(self._client, self._election, timeout, "cancel")

    async def terms(self) -> AsyncGenerator[AsyncTerm, None]:
        """``async for term in election.terms():`` campaigns again after each term, for ever.

        The body is one term, and begins with ``async with term:``, which cancels what is inside it at a loss.
        After a loss, or while the engine cannot be reached, there is a pause before the next campaign.
        """
        backoff = recipe.Backoff()
        while True:
            campaign = AsyncCampaign(self._client, self._election, None, "raise")
            try:
                term = await campaign._lead(AsyncTerm)
            except (EngineUnavailable, LockLost) as error:
                log.warning("%s; campaigning again", error)
            else:
                try:
                    yield term
                finally:
                    await term._finish(None)
                if not term._was_lost:
                    backoff.failures = 0
                    continue
            await self._client._driver.run(backoff.pause())

    async def leader(self) -> Leader | None:
        """The leader now; None: there is none."""
        driver = self._client._driver
        return await driver.run(recipe.leader(driver.client_state, self._election.record))

    async def observe(self) -> AsyncGenerator[Leader | None, None]:
        """Iterate over the leaders: the present one, then one after every change; None: there is none.

        Leaders who came and went at once may be skipped, the latest never is. While the engine cannot be
        reached, the iterator waits until it can. It is closed by ``aclose()``.
        """
        driver = self._client._driver
        observation = recipe.Observation(driver.client_state, self._election.record)
        try:
            while True:
                yield await driver.run(observation.next())
        finally:
            if not driver.closed:
                await driver.run(observation.close())


class AsyncCampaign:
    """One candidacy, from the wait to the end of the term: used with ``async with``."""

    __slots__ = ("_client", "_election", "_leadership", "_lock")

    def __init__(
        self, client: AsyncClient, election: recipe.Election, timeout: Duration | None, if_lost: IfLost
    ) -> None:
        self._client = client
        self._election = election
        self._lock = AsyncLock(client, LockCore, election.spec_for(timeout, if_lost))
        self._leadership: AsyncLeadership | None = None

    async def __aenter__(self) -> AsyncLeadership:
        self._leadership = leadership = await self._lead(AsyncLeadership)
        return leadership

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(error)

    async def _lead(self, kind: type[L]) -> L:
        """Wait to be elected, and announce it. A cancellation leaves nothing behind."""
        try:
            try:
                lease = await self._lock.__aenter__()
                driver = self._client._driver
                await driver.run(recipe.announce(driver.client_state, lease._state, self._election))
                return kind(self, self._election, lease)
            except BaseException as error:
                if self._lock.lease is not None:
                    await self._lock.__aexit__(type(error), error, error.__traceback__)
                raise
        except HoldfastError as error:
            recipe.renamed(error, self._election)
            raise

    async def _leave(self, error: BaseException | None) -> None:
        """The work has stopped: now, and not before, the leadership is given up."""
        try:
            await self._lock.__aexit__(None if error is None else type(error), error, None)
        except HoldfastError as failure:
            recipe.renamed(failure, self._election)
            raise


class AsyncLeadership(BaseLeadership[AsyncLease]):
    """One term of this process."""

    __slots__ = ("_campaign",)

    def __init__(self, campaign: AsyncCampaign, election: recipe.Election, lease: AsyncLease) -> None:
        super().__init__(election, lease)
        self._campaign = campaign

    def on_lost(self, callback: Callable[[AsyncLeadership], object]) -> None:
        """Call ``callback`` with the leadership at its loss, ``grace`` before the deadline; may be async."""
        myself = weakref.ref(self)
        self._lease.on_lost(lambda _: callback(me) if (me := myself()) is not None else None)

    async def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until it is lost, at most ``timeout`` (None: for ever). False: resigned, or not in time."""
        return await self._lease.wait_lost(timeout)

    async def proclaim(self, value: bytes) -> None:
        """Replace the value that ``leader()`` and ``observe()`` show of this leader; at most 64 KiB."""
        driver = self._campaign._client._driver
        try:
            await driver.run(recipe.proclaim(driver.client_state, self._lease._state, self._election, value))
        except HoldfastError as error:
            recipe.renamed(error, self._election)
            raise

    async def resign(self) -> None:
        """Give up the leadership, to the next candidate at once. Call it when the work has stopped.

        It belongs to the task that campaigned: another one does not know whether the work has stopped.
        """
        lock = self._campaign._lock
        try:
            recipe.check_resigner(lock._core, weakref.ref(_current_task()), self._election)
            await lock.release()
        except HoldfastError as error:
            recipe.renamed(error, self._election)
            raise


class AsyncTerm(AsyncLeadership):
    """One of the terms of ``terms()``. ``async with term:`` cancels what is inside it at a loss."""

    __slots__ = ("_is_over", "_was_lost")

    def __init__(self, campaign: AsyncCampaign, election: recipe.Election, lease: AsyncLease) -> None:
        super().__init__(campaign, election, lease)
        self._is_over = False
        self._was_lost = False

    async def __aenter__(self) -> AsyncTerm:
        self._campaign._lock._cancel_on_loss(_current_task(), self._lease)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return await self._finish(error)

    async def _finish(self, error: BaseException | None) -> bool:
        """The end of the term, once: give up what is left of it. True: ``error`` was its loss alone."""
        if self._is_over:
            return False
        self._is_over = True
        self._was_lost = self.lost
        if self._campaign._client._driver.closed:
            return False  # closing released it
        try:
            await self._campaign._leave(error)
        except LockLost as lost:
            self._was_lost = True
            log.warning("%s; campaigning again", lost)
            return True
        return recipe.fails_by_loss(error, self._election, self.token)
