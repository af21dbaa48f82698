"""The data of one node of a quorum: its records, the requests and the replies.

A node is an independent server that knows nothing of the others. Its times are whole microseconds of its own
wall clock, so that a server in another language computes exactly the same.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = [
    "FRESH",
    "HINT_SPAN_US",
    "RETENTION_US",
    "UNUSED",
    "Acquire",
    "Adopt",
    "Applied",
    "Claim",
    "ClockSkewed",
    "Export",
    "HeldByOther",
    "Inspect",
    "Issued",
    "List",
    "Lost",
    "Mark",
    "NamePage",
    "NodeRecord",
    "NodeReply",
    "NodeRequest",
    "Release",
    "Renew",
    "Stamp",
    "TokensExhausted",
    "Tombstone",
    "Unready",
    "View",
    "mark_text",
]

HINT_SPAN_US: Final = 60_000_000
"""A hint that is further than this ahead of or behind the node's own clock is refused. Too far ahead it would
use up numbers. Too far behind it could be a number from before the node dropped an idle name."""

RETENTION_US: Final = 86_400_000_000
"""How long a fence outlives the last claim. By then the clock, and with it every hint, is far beyond it."""


# --- records ------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """What this node granted to one attempt."""

    owner: str
    """The name of the attempt, which is never used again."""
    number: int
    """The number that this node issued to it. It is a token only where a majority issued the same."""
    since: int
    expires_at: int
    ttl: int
    until: int
    """No renewal extends the claim beyond this (``max_hold``); 0: no limit."""
    client: str
    """The client that holds it; empty while it is handed over from one process to another."""
    label: str
    """The name of the holder, for messages; the seal of the secret while the claim is handed over."""
    metadata: str
    token: int = 0
    """The number that the majority issued, stored when the claim is handed over or repaired; 0: neither."""


class Tombstone(NamedTuple):
    """An attempt that was withdrawn or broken. A copy of it that arrives late is refused."""

    owner: str
    reason: str
    note: str
    forget_at: int


class NodeRecord(NamedTuple):
    """What one node stores for one name."""

    fence: int = 0
    """The largest number that was issued here. It never decreases, and no number is issued twice."""
    claim: Claim | None = None
    tombstones: tuple[Tombstone, ...] = ()


class Mark(NamedTuple):
    """What one node stores about itself. It is lost together with the other data."""

    ready: str = ""
    """``set/size/run_id`` once the node may issue numbers. Every start of a server has another run id."""
    primed: str = ""
    """The same, written first when a set is initialised."""
    rejoins: str = ""
    """The same, while the node gets the fences. If its data is lost again, this is lost, too."""
    longest: int = 0
    """The longest ttl that was ever requested here. A node that rejoins waits for longer than that."""


UNUSED: Final = NodeRecord()
FRESH: Final = Mark()


def mark_text(set_id: str, size: int, run: str) -> str:
    """The mark of a ready node: the id of the set, the number of its nodes, and the run id."""
    return f"{set_id}/{size}/{run}"


# --- requests -----------------------------------------------------------------------------------


class Acquire(NamedTuple):
    """Grant a claim with a number to this attempt. The same attempt gets the same answer again."""

    owner: str
    hint: int
    """Issue this number if it is larger than all before."""
    ttl: int
    max_hold: int
    """0: none."""
    client: str
    label: str
    metadata: str
    instead_of: tuple[str, ...] = ()
    """Attempts that lose the name (``break_lock``)."""
    note: str = ""
    """The reason of the break."""
    token: int = 0
    """The number that a majority has issued already, where this is a repair."""


class Stamp(NamedTuple):
    """Issue exactly this number to the attempt, if it still has the claim and the number is new here."""

    owner: str
    number: int


class Release(NamedTuple):
    """End the attempt. ``linger``: how long an Acquire that may still arrive is refused."""

    owner: str
    linger: int = 0


class Renew(NamedTuple):
    """Extend the claim to ``ttl`` from now, if it is still there."""

    owner: str
    ttl: int


class Export(NamedTuple):
    """Keep the claim for one ttl without a client. ``token``: for the client that adopts it."""

    owner: str
    token: int
    seal: str
    """A hash of the secret that the adopter must know. It replaces the label until then."""


class Adopt(NamedTuple):
    """Take over an exported claim."""

    owner: str
    client: str
    label: str
    seal: str
    """The seal of the last export."""


class Inspect(NamedTuple):
    """Ask for a ``View``."""


class List(NamedTuple):
    """Ask for a page of the names with a prefix, and their records; the first cursor is empty."""

    prefix: str
    cursor: str = ""


NodeRequest = Acquire | Stamp | Release | Renew | Export | Adopt | Inspect
"""Requests about a name. All but Release need a node that is ready."""


# --- replies ------------------------------------------------------------------------------------


class Issued(NamedTuple):
    """The attempt has the claim, with this number."""

    number: int


class HeldByOther(NamedTuple):
    """Another attempt has it."""

    claim: Claim
    now: int


class Applied(NamedTuple):
    """The attempt had the claim, and the request was applied."""


class Lost(NamedTuple):
    """The attempt has no claim here."""

    reason: str
    """``expired``, ``stolen``, ``broken`` or ``withdrawn``."""
    note: str = ""


class Unready(NamedTuple):
    """The node may not issue numbers: it lost its data, was restarted, or belongs to another set."""

    mark: str
    """The mark of the node; empty: it has none."""


class ClockSkewed(NamedTuple):
    """The hint is too far from the node's own clock, which shows ``now``."""

    now: int


class TokensExhausted(NamedTuple):
    """No larger number can be issued."""


class View(NamedTuple):
    """The record at ``now``."""

    record: NodeRecord
    now: int


class NamePage(NamedTuple):
    """``cursor``: where the next page begins; empty: this is the last page."""

    found: tuple[tuple[str, NodeRecord], ...]
    now: int
    cursor: str


NodeReply = Issued | HeldByOther | Applied | Lost | Unready | ClockSkewed | TokensExhausted | View
