"""Sorts failed requests: not applied, outcome unknown, or engine unavailable."""

from __future__ import annotations

from typing import Final

from kazoo import exceptions

from ...core.effects import NotApplied, OutcomeUnknown
from ...errors import EngineUnavailable
from ...protocols.tickets.store import SessionEndedError

__all__ = ["ABOUT_NODES", "classify_error"]

ABOUT_NODES: Final = (
    exceptions.NoNodeError,
    exceptions.NodeExistsError,
    exceptions.BadVersionError,
    exceptions.NotEmptyError,
)
"""Answers, not failures: the caller interprets them."""

NOT_PERMITTED: Final = (
    exceptions.NoAuthError,
    exceptions.AuthFailedError,
    exceptions.InvalidACLError,
)

UNDECIDED: Final = (
    exceptions.ConnectionLoss,
    exceptions.OperationTimeoutError,
    exceptions.RequestTimeoutError,
    RuntimeError,
)
"""The connection ended during the request; kazoo raises RuntimeError for replies out of order."""


def classify_error(error: BaseException, wrote: bool) -> Exception:
    """``wrote``: a write was among the requests."""
    if isinstance(error, exceptions.SessionExpiredError):
        return SessionEndedError()
    if isinstance(error, exceptions.SessionMovedError | exceptions.ThrottledOpError):
        return NotApplied(f"ZooKeeper refuses for now: {type(error).__name__}")
    if isinstance(error, UNDECIDED):
        message = "the connection to ZooKeeper ended"
        return OutcomeUnknown(message) if wrote else NotApplied(message)
    if isinstance(error, exceptions.UnimplementedError):
        return EngineUnavailable("this ZooKeeper is too old: 3.5.1 is the first that has containers")
    if isinstance(error, NOT_PERMITTED):
        return EngineUnavailable(
            "ZooKeeper does not permit this: write the user and the password that created the nodes into the "
            "URL, zookeeper://user:password@host, or use another path. On the node that the URL's path names "
            "the user needs the right to create (c); all below it is made with an ACL for that user alone"
        )
    return EngineUnavailable(f"ZooKeeper refuses: {type(error).__name__}")
