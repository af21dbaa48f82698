"""Work that is shared out among many workers or servers."""

from __future__ import annotations

from typing import Final

from ..tree import Leaf
from .common import DATABASES, ENGINES, PAUSED

__all__ = ["WORK"]

WORK: Final = (
    Leaf(
        "queue",
        "A queue in your own database",
        ({"problem": ("items",), "share": ("task",)},),
        "A job is put in the transaction that it belongs to, and finished in the transaction that has its "
        "effects, so they happen exactly once. Workers do not wait for each other, and a job whose worker "
        "died goes to the next one.",
        DATABASES,
        """
queue.install()  # once; otherwise the first call does
queue.put("pack", {"order": 4711}, connection=db)  # commits with what else this transaction writes
db.commit()

for job in queue.claim("pack", lease=30):
    with job.transaction() as own:  # the effect and the end of the job; StaleToken if another has it
        own.execute("UPDATE stock SET quantity = quantity - 1 WHERE item = 'lamp'")
    print("packed order", job.payload["order"])
""",
        (
            (
                "Effects outside the database may come twice: pass job.token to a guard, or make them "
                "repeatable."
            ),
            "A worker that does not extend its lease in time loses the job, though it still works on it.",
            "Tens of thousands of jobs a second, or many readers of one message, are for a broker.",
        ),
        "queue.md",
        imports=("import holdfast.queue",),
        uses_locks=False,
        uses_database=True,
        opens='queue = holdfast.queue.connect("{url}")',
        instead=True,
        others="take the next job",
        crash="a job for the next worker when its lease ends",
    ),
    Leaf(
        "partitions",
        "Partitions, each worked on by one owner",
        ({"problem": ("items",), "share": ("part",)},),
        "Keys are divided by a hash into partitions, and each partition belongs to one member of a group for "
        "as long as it lives. Its owner works on all of its keys without asking, and the load of the locks "
        "does not grow with the keys.",
        ENGINES,
        """
with ownership.join(locks, "orders", partitions=8) as member:
    while not member.owns("customer-7"):  # no request; another member may own it
        time.sleep(0.05)
    lease = member.lease_of(member.partition_of("customer-7"))
    lease.check()  # before each step: still ours?
    print("customer-7 is ours, with token", lease.token)
""",
        (
            (
                "An owner that is paused past its lease may not be alone: let the storage that it writes to "
                "check its token."
            ),
            "While a partition moves it has no owner: until the old owner stops (drain), or its ttl ends.",
            "The number of partitions can change only while the group has no members.",
        ),
        "ownership.md",
        imports=("import holdfast", "from holdfast import ownership", "import time"),
        others="work on other partitions",
        crash="its partitions, which go to the others",
    ),
    Leaf(
        "actor",
        "An actor for each item",
        ({"problem": ("items",), "share": ("messages",)},),
        "Each item has a mailbox, and handles one message at a time in the whole cluster. The changes of a "
        "message, the messages that it sends and its end are one transaction, so no lock is needed.",
        DATABASES,
        """
system = actors.System(None, queue)


@system.actor("account")
class Account:
    def __init__(self) -> None:
        self.balance = 0

    def deposit(self, amount: int) -> int:
        self.balance += amount
        return self.balance


system.tell("account", "7", "deposit", amount=100)  # by any process
system.run(until_idle=True)  # in any number of processes; without until_idle it goes on
print(system.state("account", "7"))
""",
        (
            "Effects outside the database may come twice: make them repeatable.",
            "One hot item handles its messages one after the other, however many workers there are.",
            "A message that fails again and again becomes a dead letter: look at dead_letters().",
        ),
        "actors.md",
        imports=("import holdfast.queue", "from holdfast import actors"),
        uses_locks=False,
        opens='queue = holdfast.queue.connect("{url}")',
        instead=True,
        others="handle the messages of other items",
        crash="a message for the next worker, which has changed nothing",
    ),
    Leaf(
        "job",
        "A job that one of many servers runs",
        ({"problem": ("schedule",)},),
        "Every server asks, and one runs the job. The job remembers its last run, so a server that comes "
        "late does not run it again, and a missed run is noticed.",
        ENGINES,
        """
job = locks.job("invoices", every=3600, at_most=600)
with job as run:
    if run is not None:  # None: another server runs it, or has run it
        run.check()  # before a long step: still ours?
        run.set_result({"sent": 12})
print(job.last.state, job.last.result)
""",
        (
            (
                "If a server dies in the middle, its run has no end: on_crash says whether the run is "
                "repeated (at least once) or not (at most once)."
            ),
            PAUSED,
            "A server has to ask: a job does not start by itself if no server comes up.",
        ),
        "jobs.md",
        others="skip this run",
        crash="a run that the next server repeats, or leaves (on_crash)",
    ),
    Leaf(
        "election",
        "A leader, elected",
        ({"problem": ("role",)},),
        "One of the candidates leads for as long as it lives and renews its lease; every client can ask "
        "who leads. When it dies, another one is elected, for a term with a higher number.",
        (*ENGINES, "redlock"),
        """
election = locks.election("scheduler", b"host-1:8080")
with election.campaign(timeout=30) as leadership:
    print("leading, in term", leadership.token)
    leadership.check()  # before each step: still the leader?
""",
        (
            PAUSED,
            "Between the death of a leader and the next term there is no leader: the ttl limits this time.",
            "The number of the term is a fencing token: let the storage that the leader writes to check it.",
        ),
        "election.md",
        others="wait to be elected, and can ask who leads",
        crash="no leader until its lease ends",
    ),
)
