"""The four scenes: what happens in each, and what must be true afterwards.

What is checked is counted from the data itself (the job's log, the orders, the balance), not from what
the workers say of themselves.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import holdfast

from ..processes import clock
from .data import OPENING_BALANCE, JobLog, Ledger, Shop
from .outcome import Check, DemoFailed
from .play import Play
from .worker import DEPLOY, LEDGER

__all__ = ["SCENES", "Scene"]

Found = tuple[tuple[Check, ...], Mapping[str, object]]
"""The checks, and the same as numbers."""

SERVERS = 20
WINDOWS = ("02:00", "03:00")
SPREAD_SECONDS = 0.3
JOB_SECONDS = 0.1
TO_BE_SEEN_SECONDS = 0.4
"""How much longer both take when people are watching."""

BUYERS = 10
BARRIER_SECONDS = 0.2
"""Time for the order to reach all workers, so that they start at once."""

PAUSE_TTL_SECONDS = 1.0
CLOCK_SLACK_SECONDS = 0.05
DEPOSIT = 10
OTHER_DEPOSIT = 5

KILLS = 5
KILL_TTL_SECONDS = 30.0
AT_ONCE_SECONDS = 2.0
"""What counts as at once, also on a busy machine. The lease has far more time left."""


@dataclass(frozen=True, slots=True)
class Scene:
    title: str
    story: str
    size: int
    """How many workers it needs."""
    play: Callable[[Play, holdfast.Client], Found]


def one_cron_job(play: Play, locks: holdfast.Client) -> Found:
    """Run once per window: the worker that gets the lock reads its value first."""
    servers = play.cast(SERVERS, "server")
    ran: list[int] = []
    tokens: list[int] = []
    slowest = 0.0
    for window in WINDOWS:
        longer = TO_BE_SEEN_SECONDS * play.stage.pace
        for server in servers:
            play.mark(server, "idle")
            delay = random.uniform(0.0, SPREAD_SECONDS + longer)
            play.troupe.order(server, "cron", window, delay, JOB_SECONDS + longer)
        fired = play.troupe.gather("waiting", servers)
        granted = play.troupe.gather("granted", servers)
        finished = play.troupe.gather("finished", servers)
        runners = [server for server, report in finished.items() if report.details["ran"]]
        ran += runners
        in_order = sorted(granted.values(), key=lambda report: report.moment)
        tokens += [report.details["token"] for report in in_order]
        slowest = max(slowest, *(finished[server].moment - fired[server].moment for server in servers))
        who = ", ".join(f"{play.name(server)} (process {play.troupe.pid(server)})" for server in runners)
        play.stage.say(f"{window}  run by {who or 'none'}; {SERVERS - len(runners)} others found it done")
        play.pause(0.4)
    windows = JobLog(play.folder).windows()
    others = SERVERS * len(WINDOWS) - len(ran)
    checks = (
        Check(
            "each window's job ran once",
            f"{len(windows)} runs in {len(WINDOWS)} windows",
            tuple(windows) == WINDOWS and len(ran) == len(WINDOWS),
        ),
        Check(
            "the others found it done",
            f"{others} of {(SERVERS - 1) * len(WINDOWS)}, within {slowest * 1000:.0f} ms",
            others == (SERVERS - 1) * len(WINDOWS),
        ),
        Check("tokens only grew", f"{len(tokens)} grants", _growing(tokens)),
    )
    figures = {
        "servers": SERVERS,
        "windows": len(WINDOWS),
        "runs": len(windows),
        "found_done": others,
        "slowest_seconds": slowest,
    }
    return checks, figures


def one_unit_left(play: Play, locks: holdfast.Client) -> Found:
    """First without the lock, to see what it is for."""
    buyers = play.cast(BUYERS, "buyer")
    shop = Shop(play.folder)
    sold = {}
    for locked in (False, True):
        shop.open(units=1)
        begin_at = clock() + BARRIER_SECONDS
        for buyer in buyers:
            play.mark(buyer, "idle")
            play.troupe.order(buyer, "buy", locked, begin_at)
        finished = play.troupe.gather("finished", buyers)
        told = sum(not report.details["bought"] for report in finished.values())
        sold[locked] = shop.orders()
        how = "with the lock   " if locked else "without the lock"
        play.stage.say(f"{how}  {sold[locked]} sold of 1 in stock, {told} buyers found it sold out")
        play.pause(0.6)
    oversold = f"{sold[False] - 1} oversold" if sold[False] > 1 else "nothing oversold, by luck"
    checks = (
        Check("without the lock", f"{sold[False]} sold of 1: {oversold}", None),
        Check(
            "with the lock: none oversold",
            f"{sold[True]} sold, {told} found it sold out",
            sold[True] == 1 and told == BUYERS - 1 and shop.units() == 0,
        ),
    )
    figures = {
        "buyers": BUYERS,
        "sold_without_lock": sold[False],
        "sold_with_lock": sold[True],
        "told_sold_out": told,
    }
    return checks, figures


def paused_holder(play: Play, locks: holdfast.Client) -> Found:
    """A worker reads the balance and is stopped before it writes. Its lease expires; another worker goes
    on."""
    late, other = play.cast(2, "clerk")
    troupe, stage = play.troupe, play.stage
    ledger = Ledger(play.folder)
    ledger.open()

    troupe.order(late, "book", DEPOSIT, PAUSE_TTL_SECONDS, True)
    first = troupe.next("granted", [late])
    stage.say(
        f"{play.name(late)} holds the lock (token {first.details['token']}) and has read the balance:"
        f" {first.details['balance']}"
    )
    troupe.order(other, "book", OTHER_DEPOSIT, PAUSE_TTL_SECONDS, False)
    play.wait_for_queue(locks, LEDGER, 1)
    play.pause(0.5)
    stopped = troupe.stop(late)
    holders = locks.inspect(LEDGER).holders
    if not holders or holders[0].token != first.details["token"]:
        raise DemoFailed(
            f"the lease of {play.name(late)} ended before it could be observed: "
            "this machine is too busy for the scene"
        )
    left = holders[0].remaining + (clock() - stopped)
    play.mark(late, "stopped")
    stage.say(f"{play.name(late)} is stopped (SIGSTOP) with {left:.2f} s of its lease left")

    second = troupe.next("granted", [other])
    taken_over = second.moment - stopped
    troupe.next("finished", [other])
    stage.say(
        f"{play.name(other)} takes over after {taken_over:.2f} s (token {second.details['token']})"
        f" and adds {OTHER_DEPOSIT}"
    )
    play.pause(0.5)

    troupe.order(late, "go on")
    resumed = troupe.resume(late)
    play.mark(late, "HOLDS")
    wrote = troupe.next("wrote", [late])
    refusal = str(wrote.details["refusal"])
    told = troupe.next("told", [late]).moment - resumed
    lost = troupe.next("lost", [late])
    stage.say(
        f"{play.name(late)} goes on and writes {wrote.details['balance']}: "
        + (f"refused, {refusal.partition('.')[0]}" if refusal else "ACCEPTED")
    )
    stage.say(
        f"{play.name(late)} is notified of its loss {told * 1000:.1f} ms after it went on, and starts again"
    )
    troupe.next("finished", [late])
    guarded, unguarded = ledger.balances()
    right_balance = OPENING_BALANCE + OTHER_DEPOSIT + DEPOSIT
    stage.say(f"balance {guarded} of {right_balance}; in the table without a guard {unguarded}")
    play.pause(0.5)

    checks = (
        Check(
            "another took over in time",
            f"after {taken_over:.2f} s; {left:.2f} s of lease were left",
            taken_over >= left - CLOCK_SLACK_SECONDS and second.details["token"] > first.details["token"],
        ),
        Check("the late write was refused", "StaleToken" if refusal else "it was accepted", bool(refusal)),
        Check(
            "the late one was notified",
            f"after {told * 1000:.1f} ms: LockLost, {lost.details['reason']}",
            lost.details["reason"] in {"expired", "stolen"},
        ),
        Check(
            "no deposit was lost",
            f"{OPENING_BALANCE} + {OTHER_DEPOSIT} + {DEPOSIT} = {guarded}",
            guarded == right_balance,
        ),
        Check(
            "without the guard",
            f"balance {unguarded}: " + ("a deposit lost" if unguarded != right_balance else "right, by luck"),
            None,
        ),
    )
    figures = {
        "ttl_seconds": PAUSE_TTL_SECONDS,
        "lease_left_seconds": left,
        "taken_over_seconds": taken_over,
        "refusal": refusal,
        "loss_reason": lost.details["reason"],
        "told_seconds": told,
        "balance_with_guard": guarded,
        "balance_without_guard": unguarded,
    }
    return checks, figures


def killed_holders(play: Play, locks: holdfast.Client) -> Found:
    """One holder after the other is killed. The next waiter does not wait for the lease to end."""
    workers = play.cast(KILLS + 1, "worker")
    troupe = play.troupe
    for place, worker in enumerate(workers):
        troupe.order(worker, "hold", KILL_TTL_SECONDS)
        if place == 0:
            current = troupe.next("granted", workers)
        else:
            play.wait_for_queue(locks, DEPLOY, place)
    order, tokens = [current.worker], [current.details["token"]]
    delays: list[float] = []
    left: list[float] = []
    for _ in range(KILLS):
        play.pause(0.3)
        left += [holder.remaining for holder in locks.inspect(DEPLOY).holders]
        killed, killed_at = current.worker, troupe.kill(current.worker)
        play.mark(killed, "killed")
        current = troupe.next("granted", workers)
        order.append(current.worker)
        tokens.append(current.details["token"])
        delays.append(current.moment - killed_at)
        play.stage.say(
            f"{play.name(killed)} killed, {left[-1]:.1f} s of lease left;"
            f" {play.name(current.worker)} goes on after {delays[-1] * 1000:.1f} ms"
        )
    play.pause(0.5)
    troupe.order(current.worker, "let go")
    troupe.next("finished", [current.worker])
    median, longest = statistics.median(delays), max(delays)
    checks = (
        Check(
            "the next went on at once",
            f"{median * 1000:.1f} ms, longest {longest * 1000:.1f}; {min(left):.1f} s left",
            longest < AT_ONCE_SECONDS,
        ),
        Check(
            "in queue order, tokens grew",
            f"{KILLS} killed, {len(order)} grants",
            order == workers and _growing(tokens),
        ),
    )
    figures = {
        "ttl_seconds": KILL_TTL_SECONDS,
        "kills": KILLS,
        "lease_left_seconds": min(left),
        "median_seconds": median,
        "longest_seconds": longest,
        "in_order": order == workers,
    }
    return checks, figures


def _growing(tokens: list[int]) -> bool:
    return all(before < after for before, after in itertools.pairwise(tokens))


SCENES: Mapping[int, Scene] = {
    1: Scene(
        "Twenty servers, one cron job",
        "All start the same job in its window. The lock's value says whether it was done.",
        SERVERS,
        one_cron_job,
    ),
    2: Scene(
        "Ten buyers, one unit left",
        "Each looks whether there is one, pays, and takes it.",
        BUYERS,
        one_unit_left,
    ),
    3: Scene(
        "A holder is paused for too long",
        f"It is stopped between reading and writing, for longer than its ttl of {PAUSE_TTL_SECONDS:g} s.",
        2,
        paused_holder,
    ),
    4: Scene(
        "Holders are killed",
        f"Five in a row, by SIGKILL. No waiter waits until their ttl of {KILL_TTL_SECONDS:g} s is over.",
        KILLS + 1,
        killed_holders,
    ),
}
