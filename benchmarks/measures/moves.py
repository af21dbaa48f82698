"""How many partitions move when a member of a group is killed and when one joins, and how long that takes."""

from __future__ import annotations

import time
from typing import cast

from holdfast.ownership import GroupInfo

from ..contestant import Contestant, MeasurementInvalid, check
from ..engines.ownership import TTL_SECONDS, Membership
from ..interleaving import Bench
from ..results import Metric, Result, Row
from ..worker import TaskContext, Team, Worker

__all__ = ["measure"]

METRICS = (
    Metric("moved", "partitions moved by a death ÷ ideal share", "factor", compared=False),
    Metric("calm", "death → calm", "seconds", compared=False),
    Metric("moved_to_join", "partitions moved by a join ÷ ideal share", "factor", compared=False),
    Metric("joined", "join → calm", "seconds", compared=False),
)

HOW = """
{members} processes share {partitions} partitions, with leases of {ttl:g} s. One is killed; then another one
joins. Moved are the partitions that were granted anew; the ideal share is that of one member,
{partitions} ÷ {members}. Calm: every partition is owned by the member that is to own it. This is looked for
every {look_ms} ms. On SQLite the death is noticed at once, on a server when the leases have expired. Each
partition must have one owner in the end, each grant a larger token than the one before, and no member more
than one partition more than another.
"""

MEMBERS = 10
PARTITIONS = 1000
LOOK_SECONDS = 0.05
PATIENCE_SECONDS = 60.0


class Crew:
    """The members of one group, and a process that looks on."""

    def __init__(self, team: Team, contestant: Contestant, bench: Bench, partitions: int) -> None:
        self.contestant = contestant
        self._team = team
        self._place = bench.place(f"moves-{contestant.key}")
        self._partitions = partitions
        self._looker = team.hire(contestant, self._place)
        self._members: list[Worker] = []

    def hire(self) -> None:
        worker = self._team.hire(self.contestant, self._place)
        worker.ready()
        self._members.append(worker)

    def join_last(self) -> None:
        self._members[-1].call(join, self._partitions)

    def kill_first(self) -> None:
        self._members.pop(0).kill()

    def calm(self) -> GroupInfo:
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < ends_at:
            info = self._looker.call(look)
            if info is not None and info.settled and len(info.members) == len(self._members):
                self._check(info)
                return info
            time.sleep(LOOK_SECONDS)
        raise MeasurementInvalid(f"{self.contestant.label} never came to rest", self.contestant)

    def _check(self, info: GroupInfo) -> None:
        loads = [len(member.owned) for member in info.members]
        check(sum(loads) == self._partitions, f"owns {sum(loads)} partitions", self.contestant)
        check(max(loads) - min(loads) <= 1, f"has loads of {min(loads)} to {max(loads)}", self.contestant)

    def moved(self, before: GroupInfo, after: GroupInfo) -> int:
        count = 0
        for old, new in zip(before.owners, after.owners, strict=True):
            check(old is not None and new is not None, "left a partition alone", self.contestant)
            if old is not None and new is not None and new.token != old.token:
                check(new.token > old.token, "granted a token that is not larger", self.contestant)
                count += 1
        return count


def measure(bench: Bench) -> Result:
    partitions = bench.pick(PARTITIONS, 12)
    members = bench.pick(MEMBERS, 3)
    ideal = partitions / members
    rows = {each: Row(each.key, each.label, each.role, each.key) for each in bench.contestants}
    with Team() as team:
        crews = {each: Crew(team, each, bench, partitions) for each in bench.contestants}
        for crew in crews.values():
            for _ in range(members):
                crew.hire()
                crew.join_last()

        def one_slice(contestant: Contestant) -> None:
            crew = crews[contestant]
            before = crew.calm()
            began = time.monotonic()
            crew.kill_first()
            after, calm = crew.calm(), time.monotonic() - began
            crew.hire()
            began = time.monotonic()
            crew.join_last()
            at_last, joined = crew.calm(), time.monotonic() - began
            rows[contestant].add(
                moved=crew.moved(before, after) / ideal,
                calm=calm,
                moved_to_join=crew.moved(after, at_last) / ideal,
                joined=joined,
            )

        rounds = bench.rounds(bench.contestants, one_slice, lambda each: each.label)
    return Result(
        "moves",
        "A member killed, a member joined",
        HOW.format(
            members=members, partitions=partitions, ttl=TTL_SECONDS, look_ms=round(LOOK_SECONDS * 1000)
        ),
        METRICS,
        list(rows.values()),
        ("calm", "joined"),
        rounds=rounds,
    )


def join(context: TaskContext, partitions: int) -> str:
    return cast(Membership, context.handle).join(partitions)


def look(context: TaskContext) -> GroupInfo | None:
    return cast(Membership, context.handle).look()
