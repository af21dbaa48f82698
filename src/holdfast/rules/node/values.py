"""What one node of a quorum keeps, what it can be asked, and what it answers. Nothing here does anything.

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
"""A hint farther than this from the node's own clock is refused, whichever way it is off. Too far ahead it
would use up numbers; too far behind it could be a number from before the node last forgot an idle name."""

RETENTION_US: Final = 86_400_000_000
"""How long a fence outlives the last claim. By then the clock that hints lean on is far beyond it."""


# --- what is kept -------------------------------------------------------------------------------


class Claim(NamedTuple):
    """What this node gave to one attempt."""

    owner: str
    """The attempt: fresh for every one, never used again."""
    number: int
    """What this node issued to it. It is a token only where a majority issued the same."""
    since: int
    expires_at: int
    ttl: int
    until: int
    """No renewal extends it beyond this (``max_hold``); 0: there is no such end."""
    client: str
    """Whose life it hangs on; empty while it is handed over from one process to another."""
    label: str
    """Who that is, for people; the seal of its secret while it is handed over."""
    metadata: str
    token: int = 0
    """What the majority issued, written down when the claim is handed over, or given to this node when others
    had it already; 0: neither."""


class Tombstone(NamedTuple):
    """An attempt that was withdrawn or broken: a copy of it that arrives late is refused."""

    owner: str
    reason: str
    note: str
    forget_at: int


class NodeRecord(NamedTuple):
    """Everything one node knows about one name."""

    fence: int = 0
    """The largest number ever issued here: it never goes down, and none is issued twice."""
    claim: Claim | None = None
    tombstones: tuple[Tombstone, ...] = ()


class Mark(NamedTuple):
    """What one node knows about itself. It is lost with everything else when the node forgets."""

    ready: str = ""
    """``set/size/run`` since the node may issue numbers; the run is the server's life from start to end."""
    primed: str = ""
    """The same, written first when a set is initialised."""
    rejoins: str = ""
    """The same, while the node is told what it forgot: a mark that is gone again forgot that, too."""
    longest: int = 0
    """The longest ttl that was ever asked for here: one who forgot has to wait for longer than that."""


UNUSED: Final = NodeRecord()
FRESH: Final = Mark()


def mark_text(set_id: str, size: int, run: str) -> str:
    """What the mark of a ready node says: the set it belongs to, of how many nodes, and since which start."""
    return f"{set_id}/{size}/{run}"


# --- requests -----------------------------------------------------------------------------------


class Acquire(NamedTuple):
    """Give it to this attempt, with a number. The same attempt again gets the same answer."""

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
    """Attempts from which it is taken away (``break_lock``)."""
    note: str = ""
    """Why."""
    token: int = 0
    """What a majority issued to it already, where it holds the name and is given to one more node."""


class Stamp(NamedTuple):
    """Issue exactly this number to the attempt, if it still has the claim and the number is new here."""

    owner: str
    number: int


class Release(NamedTuple):
    """The attempt is over. ``linger``: how long an Acquire that has yet to arrive is to be refused."""

    owner: str
    linger: int = 0


class Renew(NamedTuple):
    """Let the claim last ``ttl`` from now, if it is still there."""

    owner: str
    ttl: int


class Export(NamedTuple):
    """Let it live one ttl without any client; ``token`` is what the adopter needs to know."""

    owner: str
    token: int
    seal: str
    """A hash of the secret that the adopter has to know: it stands in the label's place meanwhile."""


class Adopt(NamedTuple):
    """Take over an exported claim."""

    owner: str
    client: str
    label: str
    seal: str
    """As it was exported with last."""


class Inspect(NamedTuple):
    """What stands there now?"""


class List(NamedTuple):
    """A page of the names that begin with a prefix, with what stands there; the first cursor is empty."""

    prefix: str
    cursor: str = ""


NodeRequest = Acquire | Stamp | Release | Renew | Export | Adopt | Inspect
"""What is asked about a name. All but Release need a node that is ready."""


# --- replies ------------------------------------------------------------------------------------


class Issued(NamedTuple):
    """The attempt has the claim, with this number."""

    number: int


class HeldByOther(NamedTuple):
    """Another attempt has it."""

    claim: Claim
    now: int


class Applied(NamedTuple):
    """It was the attempt's own, and it happened."""


class Lost(NamedTuple):
    """The attempt has no claim here."""

    reason: str
    """``expired``, ``stolen``, ``broken`` or ``withdrawn``."""
    note: str = ""


class Unready(NamedTuple):
    """The node may not issue numbers: it has forgotten, was started anew, or belongs to another set."""

    mark: str
    """What its mark says; empty: it has none."""


class ClockSkewed(NamedTuple):
    """The hint is too far from the node's own clock, which shows ``now``."""

    now: int


class TokensExhausted(NamedTuple):
    """No larger number can be issued any more."""


class View(NamedTuple):
    """What stands there at ``now``."""

    record: NodeRecord
    now: int


class NamePage(NamedTuple):
    """``cursor`` is where the next page begins; empty: this was the last."""

    found: tuple[tuple[str, NodeRecord], ...]
    now: int
    cursor: str


NodeReply = Issued | HeldByOther | Applied | Lost | Unready | ClockSkewed | TokensExhausted | View
