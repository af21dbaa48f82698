"""The quorum family: a lock on a majority of independent nodes (Redlock), with tokens issued by it.

It answers the requests of the records family, so everything above (waiting, renewing, loss, hand-over) is the
same as on every other engine.
"""

from __future__ import annotations

from .holding import tend
from .membership import join, rejoin, status
from .ops import Answers, Chance, Fan, QuorumOp, QuorumScript
from .outside import list_names
from .requests import apply, apply_in_order
from .state import Quorum

__all__ = [
    "Answers",
    "Chance",
    "Fan",
    "Quorum",
    "QuorumOp",
    "QuorumScript",
    "apply",
    "apply_in_order",
    "join",
    "list_names",
    "rejoin",
    "status",
    "tend",
]
