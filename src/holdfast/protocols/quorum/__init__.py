"""The quorum family: a lock on a majority of independent nodes (Redlock), with tokens issued by it.

It answers the requests of the records family. So everything above (waiting, renewal, loss, handover) is the
same as on every other engine.
"""

from __future__ import annotations

from .admin import list_names
from .effects import Answers, Broadcast, QuorumCoroutine, QuorumOp, Random
from .lease_operations import renew_batch
from .membership import join, rejoin, status
from .requests import apply, apply_in_order
from .state import Quorum

__all__ = [
    "Answers",
    "Broadcast",
    "Quorum",
    "QuorumCoroutine",
    "QuorumOp",
    "Random",
    "apply",
    "apply_in_order",
    "join",
    "list_names",
    "rejoin",
    "renew_batch",
    "status",
]
