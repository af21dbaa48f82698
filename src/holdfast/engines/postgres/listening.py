"""How wake-ups are heard: one connection that listens, whatever happens to it.

A script, as the protocols are, for both drivers: it yields what it needs, and a thread or a task does it.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Generator
from typing import Any, Final, NamedTuple

from ...core.effects import TransientError
from ...errors import EngineUnavailable
from .ears import Ears
from .link import Link, LinkLost, ServerError, Waits
from .statements import Call, Statements, channel_of, nonces_of, notify

__all__ = ["Listening", "Need", "Open", "Perform", "Rest", "Run", "listening"]

log = logging.getLogger("holdfast")

PROOF_LOOKS: Final = 4
PROOF_SECONDS: Final = 0.25
"""How long each look for it takes."""

SILENCE_SECONDS: Final = 5.0
"""After so long without a word the server is asked for one: a connection that died says nothing either."""

LOOK_SECONDS: Final = 0.5
"""How often watchers look where no notification comes."""

LOOKS_FOR_WATCHERS: Final = 10
"""So many of them for each look after what is held."""

DEAF_LOOKS: Final = 60
"""After so many of them a connection that did not hear is given another chance."""

FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 1.0


class Open(NamedTuple):
    """A connection, greeted."""


class Run(NamedTuple):
    """Say something on a connection, within io_timeout."""

    link: Link
    waits: Waits[Any]


class Perform(NamedTuple):
    """A statement on another connection."""

    call: Call


class Rest(NamedTuple):
    """So many seconds, or until the connection has something to read (then True)."""

    seconds: float
    link: Link | None = None


Need = Open | Run | Perform | Rest
Listening = Generator[Need, Any, None]


def listening(ears: Ears, statements: Statements, client: str) -> Listening:
    """For ever, until it is closed."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        link: Link | None = None
        try:
            link = yield Open()
            yield from _listen(link, ears, statements, channel_of(client))
            pause = FIRST_PAUSE_SECONDS
        except (TransientError, EngineUnavailable, LinkLost, ServerError, TimeoutError) as error:
            log.debug("holdfast: wake-ups are not heard: %s", error)
            ears.end()
            yield Rest(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        except Exception:  # whatever it is, wake-ups are to be heard again
            log.exception("holdfast: wake-ups are not heard for now: an unexpected error")
            ears.end()
            yield Rest(LONGEST_PAUSE_SECONDS)
        finally:
            ears.end()
            if link is not None:
                link.close()


def _listen(link: Link, ears: Ears, statements: Statements, channel: str) -> Listening:
    if link.pooled or not (yield from _is_heard(link, channel)):
        # Somebody stands between who keeps notifications to himself.
        link.close()
        for look in range(DEAF_LOOKS):
            yield Rest(LOOK_SECONDS)
            ears.wake_watchers()
            if look % LOOKS_FOR_WATCHERS == 0:
                yield from _look_after_leases(ears, statements)
        return
    ears.begin()
    yield from _look_after_leases(ears, statements)
    while True:
        if not (yield Rest(SILENCE_SECONDS, link)):
            yield Run(link, link.run("SELECT"))
        for nonce in link.hear():
            ears.wake(nonce)


def _look_after_leases(ears: Ears, statements: Statements) -> Listening:
    """What was broken unheard: the keeper will find out why it is gone."""
    for call in statements.missing(ears.held()):
        for nonce in nonces_of((yield Perform(call))):
            ears.wake(nonce)


def _is_heard(link: Link, channel: str) -> Generator[Need, Any, bool]:
    """Whether what another connection says on our channel comes here."""
    yield Run(link, link.run(f'LISTEN "{channel}"'))
    proof = f"hear:{secrets.token_hex(16)}"  # anybody may notify this channel: nobody else knows this word
    yield Perform(notify(channel, proof))
    for _ in range(PROOF_LOOKS):
        if (yield Rest(PROOF_SECONDS, link)) and proof in link.hear():
            return True
    return False
