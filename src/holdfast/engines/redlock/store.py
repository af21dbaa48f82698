"""What the adapters for threads and asyncio share: the state of the quorum, and the effects that never
wait."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from typing import Any, Final

from ...core.effects import Nonce, Notify
from ...engine_api import AdapterContext
from ...protocols.quorum import Quorum, Random
from ...runtime.clock import boottime, wall_us
from .config import RedlockConfig

__all__ = ["LINGER_SECONDS", "immediate_effects", "quorum_of", "source_of"]

LINGER_SECONDS: Final = 60.0
"""How long a request of a caller that gave up can still be executed, from the buffers of a stopped server."""


def quorum_of(config: RedlockConfig, context: AdapterContext) -> Quorum:
    return Quorum(
        client=context.client,
        labels=config.labels,
        node_seconds=config.node_seconds,
        drift=config.drift,
        retry_seconds=config.retry_seconds,
        jitter_seconds=config.jitter_seconds,
        linger=LINGER_SECONDS,
        now=boottime,
        wall_us=wall_us,
        initialises=config.initialises,
    )


def source_of(quorum: Quorum, namespace: str) -> str:
    """Tokens of two sets of nodes, or of two namespaces, cannot be compared."""
    return f"redlock:{quorum.set_id}/{namespace}"


def immediate_effects(context: AdapterContext) -> dict[type, Callable[[Any], Any]]:
    """The effects that neither block nor suspend."""
    return {
        Random: lambda effect: random.random(),
        Nonce: lambda effect: secrets.token_hex(8),
        Notify: lambda effect: context.post(effect.nonce),
    }
