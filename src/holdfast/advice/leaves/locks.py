"""Locks, where a mistake once in a long while costs work and nothing else."""

from __future__ import annotations

from typing import Final

from ..tree import Leaf
from .common import ENGINES, PAUSED

__all__ = ["LOCKS"]

LOCKS: Final = (
    Leaf(
        "lock",
        "A lock with a lease",
        ({"problem": ("section",), "stakes": ("efficiency",), "holders": ("one",)},),
        "Holders come one at a time, in order, and a crash does not block the lock for ever. In the worst "
        "case, work is done twice.",
        (*ENGINES, "redlock"),
        """
with locks.lock("report", ttl=30, timeout=5) as lease:
    print("alone, with token", lease.token)
    lease.check()  # before a long step: still ours?
""",
        (
            PAUSED,
            "A ttl bounds the delay after a crash, not the work: renewal is automatic.",
            "A second lock inside this one can be a deadlock: see several locks at once.",
        ),
        "guide.md",
        others="wait, in order but on redlock",
        crash="a lock until its lease ends",
    ),
    Leaf(
        "rwlock",
        "A reader/writer lock",
        ({"problem": ("section",), "stakes": ("efficiency",), "holders": ("readers",)},),
        "Readers share the lock, a writer has it alone, and a stream of readers does not keep writers out.",
        ENGINES,
        """
catalogue = locks.rwlock("catalogue", ttl=30, timeout=5)
with catalogue.read() as lease:
    print("reading, with token", lease.token)
with catalogue.write() as lease:
    print("writing, with token", lease.token)
""",
        (PAUSED, "A read lease cannot become a write lease: release it first."),
        "guide.md",
        others="readers share, writers wait",
        crash="a lock until its lease ends",
    ),
    Leaf(
        "semaphore",
        "A semaphore",
        ({"problem": ("section",), "stakes": ("efficiency",), "holders": ("several",)},),
        "A fixed number of holders at once; the permit of a holder that crashed comes back.",
        ENGINES,
        """
with locks.semaphore("transcoding", 3, ttl=30, timeout=5) as lease:
    print("one of three, with token", lease.token)
""",
        (PAUSED, "All users have to declare the same limit; resize() changes it for all."),
        "guide.md",
        others="wait for a permit",
        crash="a permit until its lease ends",
    ),
    Leaf(
        "multilock",
        "Several locks at once",
        ({"problem": ("together",), "known": ("yes",)},),
        "All locks are acquired or none, in one order that all callers share, so that they cannot "
        "deadlock. Losing one is losing all.",
        (*ENGINES, "redlock"),
        """
with locks.all("account-7", "account-2", ttl=30, timeout=10) as leases:
    leases.check()  # before each step: all of them still ours?
    print({name: lease.token for name, lease in leases.items()})
""",
        (
            (
                "A thread that holds another lock already, and then calls all(), can still be in a deadlock: "
                'take everything with one call, or give deadlock="raise".'
            ),
            "Each name has a token of its own: give each guard the lease of the resource that it guards.",
            "A long wait holds the locks that come first in the order: a timeout limits this.",
        ),
        "multilock.md",
        others="wait, in order but on redlock",
        crash="locks until their leases end",
    ),
    Leaf(
        "one-by-one",
        "Locks one by one, with a way out of a deadlock",
        ({"problem": ("together",), "known": ("no",)},),
        "Two callers that take two locks in opposite orders wait for each other. If no order can be kept, "
        "the waiters detect this, and one of them gives up and begins again.",
        ENGINES,
        """
def move(source: str) -> None:
    with locks.lock(source, ttl=30) as first:
        target = "shelf-2"  # what is read here decides which lock comes next
        with locks.lock(target, ttl=30, deadlock="raise") as second:
            first.check()
            print("both are held, with tokens", first.token, second.token)


for _ in range(5):
    try:
        move("shelf-7")
        break
    except holdfast.Deadlock as deadlock:  # both locks are released, and the other one goes on
        print("again, because of", [edge.name for edge in deadlock.cycle])
""",
        (
            "A deadlock is found after a second of waiting, among locks of one engine and namespace.",
            "The work under the first lock has to be undone, or has to be repeatable.",
            "In tests, holdfast.lockorder finds contradicting orders even if no deadlock happened.",
        ),
        "deadlocks.md",
        others="wait in order; one of a deadlock gives up",
        crash="locks until their leases end",
    ),
)
