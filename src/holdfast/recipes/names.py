"""The names of the recipes' records. Each recipe has names of its own, which no lock of a user can have."""

from __future__ import annotations

from hashlib import blake2b

from ..core import arguments
from ..core.canonical import Key, key_text
from ..protocols.records import WAITS

__all__ = [
    "GROUPS",
    "JOBS",
    "barrier",
    "barrier_parties",
    "cell",
    "election",
    "group",
    "group_state",
    "idempotency",
    "job",
    "job_state",
    "latch",
    "partition",
    "partitions",
    "waits",
]

JOBS = "_holdfast/job:"
"""What the records of all jobs begin with."""

GROUPS = "_holdfast/group:"
"""The records of the groups that own partitions: each live member holds its group's as a reader."""


def cell(name: str) -> str:
    """The record that holds the value of a cell."""
    return f"_holdfast/cell:{arguments.check_name(name)}"


def waits(client: str) -> str:
    """The record that shows what the waiters of a client wait for. Clients share a few of them, so that no
    client leaves one of its own behind."""
    return f"{WAITS}{client[:2]}"


def election(name: str) -> str:
    """The record whose holder is the leader of an election."""
    return f"_holdfast/election:{arguments.check_name(name)}"


def idempotency(scope: Key, key: Key) -> str:
    """The record of an operation that runs once. Where the name would be too long, its hash."""
    text = f"{key_text(scope, 'scope') if scope != '' else ''}/{key_text(key)}"
    name = f"_holdfast/idempotency:{text}"
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        encoded = b""
    if len(encoded) > arguments.NAME_BYTES_MAX:
        name = f"_holdfast/idempotency:#{blake2b(encoded, digest_size=32).hexdigest()}"
    return arguments.check_name(name, "key")


def job(name: str) -> str:
    """The lock that a run of a job holds."""
    return f"{JOBS}{arguments.check_name(name)}"


def job_state(name: str) -> str:
    """The cell that remembers a job's last run."""
    return f"_holdfast/job-state:{arguments.check_name(name)}"


def latch(name: str) -> str:
    """The record that holds the count of a latch."""
    return f"_holdfast/latch:{arguments.check_name(name)}"


def barrier(name: str) -> str:
    """The record that holds the state of a barrier."""
    return f"_holdfast/barrier:{arguments.check_name(name)}"


def barrier_parties(name: str) -> str:
    """The reader/writer lock of which each party that waits at a barrier holds a read lease."""
    return f"_holdfast/parties:{arguments.check_name(name)}"


def group(name: str) -> str:
    """The record whose readers are the live members of a group."""
    return GROUPS + name


def group_state(name: str) -> str:
    """The record of the cell that says which member is to own which partition."""
    return f"_holdfast/group-state:{name}"


def partitions(group: str) -> str:
    """What the names of the partitions' locks begin with."""
    return f"_holdfast/partition:{group}/"


def partition(group: str, number: int) -> str:
    """The lock of one partition."""
    return f"{partitions(group)}{number}"
