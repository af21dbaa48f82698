"""What a message to the channel of a client means, and whether it is believed.

A message is a nonce: the attempt, lease or watcher with that nonce is to ask the server. Or a message has
three lines, the nonce of an attempt, a token and an age: the lock was granted to this attempt.

A user who may PUBLISH can send anything there, without a right to any key. So a grant is believed only with
the whole nonce of an attempt that waits. The 128 random bits of the nonce stand in the record and in no name
of a channel: the script that granted the lock has read them there. A message without a grant does publish the
nonce on the channel, so the drivers believe no grant for that attempt afterwards. An attempt that is
notified, or whose grant is in doubt, asks the server.
"""

from __future__ import annotations

import re
from typing import Any, Final

from ...core.tokens import is_plausible
from ...rules.requests import Handoff
from ...runtime.clock import wall_us

__all__ = ["NotificationParser"]

MESSAGE_BYTES_MAX: Final = 4096

_new = tuple.__new__


class NotificationParser:
    """Parses the messages of one client."""

    __slots__ = ("_grant", "_kind")

    def __init__(self, client: str, *, sharded: bool, accepts_grants: bool) -> None:
        """``accepts_grants``: whether any grant is believed."""
        nonce = re.escape(client.encode()) + rb"-[0-9a-f]{32}"
        grant = rb"(" + nonce + rb")\n([0-9]{1,16})\n([0-9]{1,9}\.[0-9]{6})"
        self._grant = re.compile(grant) if accepts_grants else None
        self._kind = b"smessage" if sharded else b"message"
        """In a Cluster grants and all other messages about an attempt use the channel in the slot of the
        lock. So they arrive in their order."""

    def parse(self, message: Any) -> tuple[str, Handoff | None] | None:
        """The nonce to notify and the grant, if there is one; None: the message cannot be parsed."""
        try:
            kind, _, content = message
            if self._grant is not None and kind == self._kind:
                grant = self._grant.fullmatch(content)
                if grant is not None:
                    return self._granted(*grant.groups())
            if len(content) > MESSAGE_BYTES_MAX:
                return None
            return content.decode("utf-8", "surrogatepass").partition("\n")[0], None
        except (ValueError, TypeError, AttributeError):
            return None

    def _granted(self, nonce: bytes, token: bytes, age: bytes) -> tuple[str, Handoff | None]:
        """A token ahead of the local clock is not believed: it is forged, or the clock is wrong."""
        number = int(token)
        if not is_plausible(number, wall_us()):
            return nonce.decode(), None
        return nonce.decode(), _new(Handoff, (number, float(age)))
