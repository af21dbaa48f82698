"""Leader election, for threads."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Generator
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from ...client import Lease, Lock, _calling
from ...core.lock_options import Duration
from ...errors import EngineUnavailable, HoldfastError, LockLost
from ...model import Leader
from ...protocols.locks import LockCore
from ...recipes import election as recipe
from ..leadership import BaseLeadership

if TYPE_CHECKING:
    from ...client import Client

__all__ = ["Campaign", "Election", "Leadership", "Term"]

L = TypeVar("L", bound="Leadership")

log = logging.getLogger("holdfast")


class Election:
    """An election: one of the candidates of its name, in all processes, is the leader at a time."""

    __slots__ = ("_client", "_election")

    def __init__(self, client: Client, name: str, value: bytes, ttl: Duration, grace: Duration) -> None:
        self._client = client
        self._election = recipe.Election(client.guarantees, name, value, ttl, grace)

    def __repr__(self) -> str:
        return f"<holdfast.Election {self.name!r} ttl={self._election.spec.ttl:g}>"

    @property
    def name(self) -> str:
        return self._election.name

    @property
    def lock_name(self) -> str:
        """The name of the lock that the leader holds, for ``inspect`` and ``break_lock``."""
        return self._election.record

    def campaign(self, timeout: Duration | None = None) -> Campaign:
        """``with election.campaign() as leadership:`` waits to be elected, and leads while the body runs.

        timeout: how long to wait: seconds or a timedelta; 0 tries once, None or -1 waits for ever. If it was
            not elected in time, LockTimeout is raised and the body does not run.
        """
        return Campaign(self._client, self._election, timeout)

    def terms(self) -> Generator[Term, None, None]:
        """``for term in election.terms():`` campaigns again after each term, for ever.

        The body is one term. It ends when the body ends; ``with term:`` in it turns a loss into the end of
        the term. After a loss, or while the engine cannot be reached, there is a pause before the next
        campaign.
        """
        backoff = recipe.Backoff()
        while True:
            campaign = Campaign(self._client, self._election, None)
            try:
                term = campaign._lead(Term)
            except (EngineUnavailable, LockLost) as error:
                log.warning("%s; campaigning again", error)
            else:
                try:
                    yield term
                finally:
                    term._finish(None)
                if not term._was_lost:
                    backoff.failures = 0
                    continue
            self._client._driver.run(backoff.pause())

    def leader(self) -> Leader | None:
        """The leader now; None: there is none."""
        driver = self._client._driver
        return driver.run(recipe.leader(driver.client_state, self._election.record))

    def observe(self) -> Generator[Leader | None, None, None]:
        """Iterate over the leaders: the present one, then one after every change; None: there is none.

        Leaders who came and went at once may be skipped, the latest never is. While the engine cannot be
        reached, the iterator waits until it can. It is closed by ``close()``, or with the loop that uses it.
        """
        driver = self._client._driver
        observation = recipe.Observation(driver.client_state, self._election.record)
        try:
            while True:
                yield driver.run(observation.next())
        finally:
            if not driver.closed:
                driver.run(observation.close())


class Campaign:
    """One candidacy, from the wait to the end of the term: used with ``with``."""

    __slots__ = ("_client", "_election", "_leadership", "_lock")

    def __init__(self, client: Client, election: recipe.Election, timeout: Duration | None) -> None:
        self._client = client
        self._election = election
        self._lock = Lock(client, LockCore, election.spec_for(timeout))
        self._leadership: Leadership | None = None

    def __enter__(self) -> Leadership:
        self._leadership = leadership = self._lead(Leadership)
        return leadership

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)

    def _lead(self, kind: type[L]) -> L:
        """Wait to be elected, and announce it. An interrupt leaves nothing behind."""
        try:
            try:
                lease = self._lock.__enter__()
                driver = self._client._driver
                driver.run(recipe.announce(driver.client_state, lease._state, self._election))
                return kind(self, self._election, lease)
            except BaseException as error:
                if self._lock.lease is not None:
                    self._lock.__exit__(type(error), error, error.__traceback__)
                raise
        except HoldfastError as error:
            recipe.renamed(error, self._election)
            raise

    def _leave(self, error: BaseException | None) -> None:
        """The work has stopped: now, and not before, the leadership is given up."""
        try:
            self._lock.__exit__(None if error is None else type(error), error, None)
        except HoldfastError as failure:
            recipe.renamed(failure, self._election)
            raise


class Leadership(BaseLeadership[Lease]):
    """One term of this process."""

    __slots__ = ("_campaign",)

    def __init__(self, campaign: Campaign, election: recipe.Election, lease: Lease) -> None:
        super().__init__(election, lease)
        self._campaign = campaign

    def on_lost(self, callback: Callable[[Leadership], object]) -> None:
        """Call ``callback`` with the leadership at its loss, ``grace`` before the deadline, in another
        thread."""
        myself = weakref.ref(self)
        self._lease.on_lost(lambda _: callback(me) if (me := myself()) is not None else None)

    def wait_lost(self, timeout: Duration | None = None) -> bool:
        """Wait until it is lost, at most ``timeout`` (None: for ever). False: resigned, or not in time."""
        return self._lease.wait_lost(timeout)

    def proclaim(self, value: bytes) -> None:
        """Replace the value that ``leader()`` and ``observe()`` show of this leader; at most 64 KiB."""
        driver = self._campaign._client._driver
        try:
            driver.run(recipe.proclaim(driver.client_state, self._lease._state, self._election, value))
        except HoldfastError as error:
            recipe.renamed(error, self._election)
            raise

    def resign(self) -> None:
        """Give up the leadership, to the next candidate at once. Call it when the work has stopped.

        It belongs to the thread that campaigned: another one does not know whether the work has stopped.
        """
        lock = self._campaign._lock
        try:
            recipe.check_resigner(lock._core, _calling(), self._election)
            lock.release()
        except HoldfastError as error:
            recipe.renamed(error, self._election)
            raise


class Term(Leadership):
    """One of the terms of ``terms()``. ``with term:`` ends it, and takes its loss for its end."""

    __slots__ = ("_is_over", "_was_lost")

    def __init__(self, campaign: Campaign, election: recipe.Election, lease: Lease) -> None:
        super().__init__(campaign, election, lease)
        self._is_over = False
        self._was_lost = False

    def __enter__(self) -> Term:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._finish(error)
        return recipe.fails_by_loss(error, self._election, self.token)

    def _finish(self, error: BaseException | None) -> None:
        """The end of the term, once: give up what is left of it."""
        if self._is_over:
            return
        self._is_over = True
        self._was_lost = self.lost
        if self._campaign._client._driver.closed:
            return  # closing released it
        try:
            self._campaign._leave(error)
        except LockLost as lost:
            self._was_lost = True
            log.warning("%s; campaigning again", lost)
