"""What a message to the channel of a client says, and whether it is believed.

A message is the nonce of the attempt, lease or watcher that is to look at the server; or it has three lines,
the nonce of an attempt, a token and an age: the lock was granted to this attempt.

Whoever may PUBLISH can send anything there, and needs no right to a key for that. So a grant is believed only
with the whole nonce of an attempt that waits. The 128 random bits in it stand in the record and in no name of
a channel: the script that granted the lock has read them there. A message to look does tell them on the
channel, so after such a message no grant is believed for that attempt (the drivers see to that). An attempt
that is told to look, or of a grant in doubt, asks the server, which knows.
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
    """What one client believes."""

    __slots__ = ("_grant", "_kind")

    def __init__(self, client: str, *, sharded: bool, takes: bool) -> None:
        """``takes``: whether any grant is believed."""
        nonce = re.escape(client.encode()) + rb"-[0-9a-f]{32}"
        grant = rb"(" + nonce + rb")\n([0-9]{1,16})\n([0-9]{1,9}\.[0-9]{6})"
        self._grant = re.compile(grant) if takes else None
        self._kind = b"smessage" if sharded else b"message"
        """In a Cluster a grant comes to the channel in the slot of the lock, as does all else that names the
        attempt: so they come in their order."""

    def parse(self, message: Any) -> tuple[str, Handoff | None] | None:
        """Whom it wakes, and with what; None: it cannot be read."""
        try:
            kind, _, said = message
            if self._grant is not None and kind == self._kind:
                grant = self._grant.fullmatch(said)
                if grant is not None:
                    return self._granted(*grant.groups())
            if len(said) > MESSAGE_BYTES_MAX:
                return None
            return said.decode("utf-8", "surrogatepass").partition("\n")[0], None
        except (ValueError, TypeError, AttributeError):
            return None

    def _granted(self, nonce: bytes, token: bytes, age: bytes) -> tuple[str, Handoff | None]:
        """A token that no clock has reached is not the server's, unless ours is wrong: then it is asked."""
        number = int(token)
        if not is_plausible(number, wall_us()):
            return nonce.decode(), None
        return nonce.decode(), _new(Handoff, (number, float(age)))
