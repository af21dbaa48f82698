"""What an operator does to a set of nodes: initialise it, look at it, have nodes that forgot rejoin."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Set
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, TypeVar

from ...core.effects import Pause, TransientError
from ...core.urls import parse_url
from ...engine_api import AdapterContext
from ...errors import EngineUnavailable, InvalidArgument
from ...protocols import quorum as family
from ...protocols.quorum import Quorum, QuorumCoroutine
from ...protocols.quorum.membership import Status
from ...runtime.clock import boottime
from .config import RedlockConfig, config_from_url
from .keys import Keyspace
from .threads import RedlockThreads

__all__ = ["initialise", "nodes_of", "rejoin", "status", "status_of"]

T = TypeVar("T")

IO_SECONDS: Final = 5.0
NODE_SECONDS: Final = 1.0
"""An operator is more patient with nodes than a program that waits for a lock."""

PAUSE_SECONDS: Final = 0.1


def nodes_of(url: str) -> tuple[str, ...]:
    """The nodes that a URL names, in its order."""
    return _config_of(url).labels


def status(url: str) -> list[Status]:
    """How every node stands. Changes nothing."""
    return status_of(_config_of(url))


def status_of(settings: RedlockConfig) -> list[Status]:
    """The same by settings that are known already."""
    with _connected_with(settings) as adapter:
        return _retry_until_deadline(adapter, family.status)


def initialise(url: str) -> str:
    """Make one set of nodes that are all there and all empty; the id of the set they belong to now."""
    with _connected(url) as adapter:
        adapter.quorum.initialises = True
        _retry_until_deadline(adapter, family.join)
        return adapter.quorum.set_id


def rejoin(url: str, nodes: Set[int], wait: float | None = None, remembers: bool = False) -> dict[int, str]:
    """Have nodes that forgot take part again. Node → what became of it.

    ``wait``: for so many seconds, if the operator knows that nothing longer was ever granted.
    ``remembers``: the operator knows that a restarted node has lost nothing.
    """
    with _connected(url) as adapter:
        adapter.quorum.initialises = False
        return _retry_until_deadline(
            adapter, lambda quorum: family.rejoin(quorum, frozenset(nodes), wait, remembers)
        )


def _config_of(url: str) -> RedlockConfig:
    parsed = parse_url(url)
    if parsed.scheme != "redlock":
        raise InvalidArgument(f"this is about redlock://, not about {parsed.scheme}://")
    return config_from_url(parsed, {})


def _connected(url: str) -> AbstractContextManager[RedlockThreads]:
    return _connected_with(_config_of(url))


@contextmanager
def _connected_with(settings: RedlockConfig) -> Iterator[RedlockThreads]:
    hooks = AdapterContext(secrets.token_hex(8), _nobody, _nobody, IO_SECONDS)
    adapter = RedlockThreads(settings, Keyspace("holdfast"), hooks)
    adapter.quorum.node_seconds = max(settings.node_seconds, NODE_SECONDS)
    try:
        yield adapter
    finally:
        adapter.close()


def _nobody(*nonce: Any) -> None:
    """Nobody waits here."""


def _retry_until_deadline(adapter: RedlockThreads, script: Callable[[Quorum], QuorumCoroutine[T]]) -> T:
    """Nodes may be initialised by somebody else at this moment, or be about to answer."""
    ends_at = boottime() + IO_SECONDS
    while True:
        try:
            return adapter.run(script(adapter.quorum))
        except TransientError as trouble:
            if boottime() >= ends_at:
                raise EngineUnavailable(str(trouble)) from trouble
        adapter.run(_pause())


async def _pause() -> None:
    await Pause(PAUSE_SECONDS)
