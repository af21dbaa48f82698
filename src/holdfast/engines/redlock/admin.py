"""What an operator does with a set of nodes: initialise it, show its status, have nodes rejoin after data
loss."""

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
"""An operator waits longer for nodes than a program that waits for a lock."""

PAUSE_SECONDS: Final = 0.1


def nodes_of(url: str) -> tuple[str, ...]:
    """The nodes of a URL, in its order."""
    return _config_of(url).labels


def status(url: str) -> list[Status]:
    """The status of every node. Changes nothing."""
    return status_of(_config_of(url))


def status_of(config: RedlockConfig) -> list[Status]:
    """The same for a configuration."""
    with _connected_with(config) as adapter:
        return _retry_until_deadline(adapter, family.status)


def initialise(url: str) -> str:
    """Make a set of nodes that are all reachable and all empty. Returns the id of the set."""
    with _connected(url) as adapter:
        adapter.quorum.initialises = True
        _retry_until_deadline(adapter, family.join)
        return adapter.quorum.set_id


def rejoin(url: str, nodes: Set[int], wait: float | None = None, remembers: bool = False) -> dict[int, str]:
    """Have nodes take part again after data loss. Returns the result for each node.

    ``wait``: seconds to wait, if the operator knows that no lease was ever longer.
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
        raise InvalidArgument(f"this needs a redlock:// URL, not {parsed.scheme}://")
    return config_from_url(parsed, {})


def _connected(url: str) -> AbstractContextManager[RedlockThreads]:
    return _connected_with(_config_of(url))


@contextmanager
def _connected_with(config: RedlockConfig) -> Iterator[RedlockThreads]:
    context = AdapterContext(secrets.token_hex(8), _ignore, _ignore, IO_SECONDS)
    adapter = RedlockThreads(config, Keyspace("holdfast"), context)
    adapter.quorum.node_seconds = max(config.node_seconds, NODE_SECONDS)
    try:
        yield adapter
    finally:
        adapter.close()


def _ignore(*nonce: Any) -> None:
    """No lock is waited for here."""


def _retry_until_deadline(adapter: RedlockThreads, operation: Callable[[Quorum], QuorumCoroutine[T]]) -> T:
    """Retry: another client may be initialising the nodes, or a node may be about to answer."""
    ends_at = boottime() + IO_SECONDS
    while True:
        try:
            return adapter.run(operation(adapter.quorum))
        except TransientError as error:
            if boottime() >= ends_at:
                raise EngineUnavailable(str(error)) from error
        adapter.run(_pause())


async def _pause() -> None:
    await Pause(PAUSE_SECONDS)
