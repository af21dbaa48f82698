"""What both facades share: everything about a lease that needs no I/O, and how an engine is chosen."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..core import arguments
from ..core.urls import parse_url
from ..engine_api import Engine
from ..engines import default_url, engine_of_client, open_engine
from ..errors import InvalidArgument, Unsupported
from ..model import Fence, Guarantees, Kind, Mode
from ..protocols import locks, records
from ..protocols.client_state import ClientState, LeaseState
from ..runtime.clock import boottime, wall_seconds

__all__ = [
    "IO_TIMEOUT_SECONDS",
    "UPGRADE_MESSAGE",
    "BaseClient",
    "BaseLease",
    "check_fair",
    "engine_for",
    "max_waiters_of",
    "watch_long_wait_of",
]

IO_TIMEOUT_SECONDS = 5.0

UPGRADE_MESSAGE = (
    "a read lease cannot be upgraded on any engine, because two readers that try would wait for each other "
    "for ever: release it and take write(), or take write() and downgrade()"
)


def max_waiters_of(url: object, options: dict[str, Any]) -> int | None:
    """The option ``max_waiters``, taken out of ``options``, or as the URL has it; None: it is not given."""
    if "max_waiters" in options:
        return arguments.check_max_waiters(options.pop("max_waiters"))
    text = os.environ.get("HOLDFAST_URL") if url is None else url
    if not text or not isinstance(text, str) or "max_waiters" not in text:
        return None
    given = parse_url(text).options.get("max_waiters")
    return None if given is None else arguments.check_max_waiters(given)


def check_max_waiters(engine: Engine, given: int | None) -> int:
    """How many may wait for one name."""
    promised = engine.guarantees
    if promised.has_counted_queue:
        return arguments.MAX_WAITERS if given is None else given
    if given is not None:
        raise Unsupported(
            f"{promised.engine} does not count the waiters of a name, so it has no option max_waiters: leave "
            "the option out, or use sqlite://, redis://, postgresql://, etcd:// or zookeeper://"
        )
    return arguments.MAX_WAITERS_MAX


def engine_for(url: object, namespace: str, options: Mapping[str, Any]) -> Engine:
    """The engine that a URL names, or a live client is connected to.

    Without either, that of ``$HOLDFAST_URL``, else the embedded engine.
    """
    arguments.check_name(namespace, "namespace")
    if url is not None and not isinstance(url, str):
        engine = engine_of_client(url, namespace, options)
        if engine is not None:
            return engine
        raise InvalidArgument(
            f"a URL is text; it is {type(url).__name__}: write for example 'sqlite:////path/locks.db'"
        )
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or default_url()
    return open_engine(url, namespace, options)


def check_fair(engine: Engine, fair: bool | None) -> None:
    """Refuse ``fair=True`` on an engine that does not serve waiters in order."""
    if fair is True and not engine.guarantees.is_fifo:
        raise Unsupported(
            f"{engine.guarantees.engine} does not serve waiters in order of arrival, so fair=True is "
            "impossible: leave it out, or use sqlite://, redis:// or etcd://"
        )


def watch_long_wait_of(
    promised: Guarantees, waits_itself: Callable[[records.Attempt], bool] | None = None
) -> records.WatchLongWait | None:
    """What waiters do after a second: look for a deadlock, where the engine can tell. None: nothing.

    ``waits_itself``: whether the attempt's caller waits for it, rather than having another task wait.
    """
    if "rwlock" not in promised.primitives:
        return None

    def watch(attempt: records.Attempt) -> records.LongWait | None:
        if waits_itself is not None and not waits_itself(attempt):
            return None
        from ..recipes.deadlock import DeadlockWatch  # most programs never wait so long

        return DeadlockWatch(attempt, promised.has_counted_queue)

    return watch


class BaseDriver(Protocol):
    """What a lease needs of its driver."""

    closed: bool
    client_state: ClientState

    @property
    def source(self) -> str: ...

    @property
    def adapter(self) -> object: ...


class BaseClient(Protocol):
    """What a lease needs of its client."""

    @property
    def _driver(self) -> BaseDriver: ...

    @property
    def namespace(self) -> str: ...


class BaseLease:
    """One grant, as far as this process knows it without I/O."""

    __slots__ = ("__weakref__", "_acquired_at", "_client", "_state", "_successor")

    def __init__(self, client: BaseClient, state: LeaseState) -> None:
        self._client = client
        self._state = state
        self._acquired_at = wall_seconds()
        self._successor: BaseLease | None = None
        """What this lease was downgraded to: the end of ``with`` releases that, so it lives as long."""

    def __repr__(self) -> str:
        state = self._state
        detail = state.ended or ("lost" if self.lost else f"remaining={self.remaining:.3f}")
        return f"<holdfast.{type(self).__name__} {state.kind} {state.name!r} token={state.token} {detail}>"

    @property
    def name(self) -> str:
        return self._state.name

    @property
    def kind(self) -> Kind:
        return self._state.kind

    @property
    def mode(self) -> Mode:
        return self._state.mode

    @property
    def token(self) -> int:
        """The fencing token: unique, larger than every earlier grant of this name."""
        return self._state.token

    @property
    def fence(self) -> Fence:
        """What a guard stores of this grant."""
        return Fence(
            f"{self._client._driver.source}/{self._state.name}", self._state.token, self._state.nonce
        )

    @property
    def peers(self) -> tuple[int, ...]:
        """The tokens of the shared grants that existed beside this one when it was granted."""
        return self._state.peers

    @property
    def owner(self) -> str:
        return self._state.owner

    @property
    def id(self) -> str:
        return self._state.nonce

    @property
    def ttl(self) -> float:
        return self._state.ttl

    @property
    def acquired_at(self) -> float:
        """Wall time of the grant, for people: seconds since 1970."""
        return self._acquired_at

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._state.metadata

    @property
    def remaining(self) -> float:
        """Seconds this process may still rely on it, by its own clock."""
        return self._state.remaining(boottime())

    @property
    def lost(self) -> bool:
        return self._state.loss(boottime()) is not None

    def check(self) -> None:
        """Raise LockLost unless it may still be relied on (NotHeld, if it was released)."""
        locks.check(self._state, boottime())

    def _ticket(self) -> Any:
        """Where an engine of tickets keeps this grant, for guards of data in the same store; else None."""
        handle_of = getattr(self._client._driver.adapter, "handle_of", None)
        return None if handle_of is None else handle_of(self._state.nonce)

    def __reduce__(self) -> Any:
        raise TypeError("a lease cannot be pickled: hand it over with lease.export() and client.adopt(text)")

    def __del__(self) -> None:
        try:
            state = self._state
        except AttributeError:
            return  # interrupted during its construction
        if state.ended is None and state.reason is None and not self._client._driver.closed:
            warnings.warn(
                f"the lease of {state.name!r} (token {state.token}) was dropped without release: "
                "it is no longer renewed and expires",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            records.dropped(self._client._driver.client_state, state)
