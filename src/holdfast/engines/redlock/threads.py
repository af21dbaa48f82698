"""The Redlock engine for the threads driver. The calling thread asks all nodes and collects their answers."""

from __future__ import annotations

import threading
import time
from typing import Any, TypeVar

from ...core.effects import Pause
from ...engine_api import AdapterContext, Steps
from ...protocols import quorum as family
from ...protocols.quorum import Broadcast, QuorumCoroutine
from ...rules.requests import Reply, Request, Snapshot
from ...runtime import trampoline
from .config import RedlockConfig
from .keys import Keyspace
from .pool import ConnectionPool
from .store import immediate_effects, quorum_of, source_of

__all__ = ["RedlockThreads"]

T = TypeVar("T")


class RedlockThreads:
    """The adapter of one client."""

    notification_reader = None

    def __init__(self, config: RedlockConfig, space: Keyspace, context: AdapterContext) -> None:
        self.quorum = quorum_of(config, context)
        self._space = space
        self._pool = ConnectionPool(config, space, context)
        self._immediate_effects = immediate_effects(context)
        self._is_keeper = context.is_keeper
        self._thread_local = threading.local()
        """Whether this thread is the keeper. That never changes."""

    @property
    def source(self) -> str:
        return source_of(self.quorum, self._space.namespace)

    def apply(self, name: str, request: Request) -> Reply:
        return self.run(family.apply(self.quorum, name, request))

    def apply_in_order(self, steps: Steps, stop_when_refused: bool) -> list[Reply]:
        return self.run(family.apply_in_order(self.quorum, steps, stop_when_refused))

    def renew_batch(self, steps: Steps) -> list[Reply]:
        return self.run(family.renew_batch(self.quorum, steps))

    def list_names(self, prefix: str) -> list[tuple[str, Snapshot]]:
        return self.run(family.list_names(self.quorum, prefix))

    def run(self, coroutine: QuorumCoroutine[T]) -> T:
        """Run a coroutine. The keeper has connections of its own: renewals do not wait behind acquires."""
        try:
            is_keeper = self._thread_local.is_keeper
        except AttributeError:
            is_keeper = self._thread_local.is_keeper = self._is_keeper()
        return trampoline.run(coroutine, self._perform_for_keeper if is_keeper else self._perform)

    def _perform(self, effect: Any) -> Any:
        return self._pool.broadcast(effect) if effect.__class__ is Broadcast else self._perform_local(effect)

    def _perform_for_keeper(self, effect: Any) -> Any:
        return (
            self._pool.broadcast_for_keeper(effect)
            if effect.__class__ is Broadcast
            else self._perform_local(effect)
        )

    def _perform_local(self, effect: Any) -> Any:
        if effect.__class__ is Pause:
            time.sleep(effect.seconds)
            return None
        return self._immediate_effects[effect.__class__](effect)

    # --- notifications: nodes send none, so a waiter polls ----------------------------------------

    def listen(self, name: str | None) -> None:
        """A waiter of this client is notified by the client. Other waiters poll."""

    def unlisten(self, nonce: str, name: str | None) -> None:
        """``listen`` has started nothing."""

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None:
        """Nodes report no dead client. Its leases expire."""

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        self._pool.close()

    def forked(self) -> None:
        self._pool.detach_after_fork()
