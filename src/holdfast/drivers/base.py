"""What both drivers share: the state of their client, and the wake-ups that its waiters wait for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from ..core.effects import TimerName, Unlisten, Wait
from ..engine_api import Engine
from ..protocols.client_state import EXITS, ClientState
from ..protocols.reports import Reports
from ..rules.requests import Handoff
from ..runtime.clock import boottime
from ..runtime.identity import attempt_names, new_client_id, owner_prefix
from ..runtime.wakeups import Wakeup

__all__ = ["BaseDriver"]

W = TypeVar("W", bound=Wakeup)


class Adapter(Protocol):
    """The part of an engine's adapter that is the same for threads and asyncio."""

    @property
    def source(self) -> str: ...

    def unlisten(self, nonce: str, name: str | None) -> None: ...

    def watch_clients(self, nonce: str, clients: tuple[str, ...]) -> None: ...

    def forked(self) -> None: ...


class BaseDriver(ABC, Generic[W]):
    """Everything one client needs, except how it waits."""

    adapter: Adapter
    exits: tuple[type[BaseException], ...] = EXITS
    """The errors that end the keeper and the timer."""

    def __init__(self, engine: Engine, io_timeout: float, max_waiters: int) -> None:
        self._engine = engine
        self._io_timeout = io_timeout
        self._max_waiters = max_waiters
        self.closed = False
        self._reset()

    def _reset(self) -> None:
        """Make all state anew: a forked child must not inherit any."""
        client = new_client_id()
        self.owner_prefix = owner_prefix()
        self._wakeups: dict[str, W] = {}
        self._timer_wakeups: dict[TimerName, W] = {}
        self._failures = 0
        """How often the keeper or the timer ended unexpectedly."""
        self.client_state = ClientState(
            client,
            self._io_timeout,
            self._engine.linger,
            self._wake_timer,
            boottime,
            attempt_names(client),
            self._engine.session_bound,
            self._max_waiters,
            reports=Reports(self._engine.url),
            exits=self.exits,
        )

    @property
    def source(self) -> str:
        """The source of this client's tokens; numbers of two sources do not compare."""
        return self.adapter.source

    def forked(self) -> None:
        """Called in the child of a fork: it owns nothing, and connects anew when it is first used."""
        self.client_state.forked()
        self.adapter.forked()
        self._reset()

    @abstractmethod
    def _wake_timer(self, timer: TimerName) -> None: ...

    # --- wake-ups -------------------------------------------------------------------------------

    def post(self, nonce: str, handoff: Handoff | None = None) -> None:
        """Wake the waiter of this nonce, or have the keeper check the lease of this nonce."""
        wakeup = self._wakeups.get(nonce)
        if wakeup is not None:
            wakeup.post(handoff)
        else:
            self.client_state.wake_background(nonce)

    def notify_all(self) -> None:
        """Wake-ups may have been missed: every waiter asks for itself, and the keeper checks every lease."""
        for wakeup in list(self._wakeups.values()):
            wakeup.post()
        for nonce in list(self.client_state.leases):
            self.client_state.wake_background(nonce)

    def _awaited(self, op: Wait) -> W:
        """The wake-up to wait for; the engine posts to it when one of the blockers dies."""
        if op.blockers:
            self.adapter.watch_clients(op.nonce, op.blockers)
        return self._wakeups[op.nonce]

    def _received(self, op: Wait, wakeup: W, is_woken: bool) -> Handoff | bool:
        """The result of a wait: the handoff that the wake-up carried, with which the subscription ends."""
        handoff = wakeup.fetch()
        if handoff is None:
            return is_woken
        self._unlisten(op)
        return handoff

    def _unlisten(self, op: Unlisten | Wait) -> None:
        wakeup = self._wakeups.pop(op.nonce, None)
        self.adapter.unlisten(op.nonce, None if wakeup is None else wakeup.name)
