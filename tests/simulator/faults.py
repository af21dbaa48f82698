"""Faults as data: what goes wrong, when, for whom, for how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .world import World

__all__ = ["FORGETS", "KINDS", "LINK_KINDS", "NODE_KINDS", "Fault", "inject"]

LINK_KINDS: Final = ("loss", "duplicate", "slow", "partition", "partition-in", "partition-out")
"""``amount``: probability of loss or of a copy; seconds that ``slow`` may add."""

CLIENT_KINDS: Final = ("pause", "crash", "interrupt", "wall jump")
"""``amount`` of an interrupt says which worker it strikes and after how many more of its operations. A wall
jump sets the clock on its machine's wall by ``amount`` seconds; nobody can set the one that counts leases."""

NODE_KINDS: Final = ("node crash", "node hang", "node amnesia", "node rollback", "node flush", "clock jump")
"""A crash keeps what was stored; amnesia loses it; a rollback loses the last ``amount`` seconds; a flush
loses it without a restart. A crashed node refuses connections where ``target`` is even, else it is silent."""

KINDS: Final = (*LINK_KINDS, *CLIENT_KINDS, *NODE_KINDS)

FORGETS: Final = ("node amnesia", "node rollback", "node flush")

EVERYONE: Final = -1


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    at: float
    kind: str
    target: int = EVERYONE
    """The machine of the client concerned; −1: all links."""
    duration: float = 0.0
    amount: float = 0.0

    def __str__(self) -> str:
        whom = " everyone" if self.target < 0 else f" client {self.target}"
        if self.kind not in (*LINK_KINDS, *CLIENT_KINDS):
            whom = ""
        lasting = f" for {self.duration:.3f} s" if self.duration else ""
        amount = f" ({self.amount:g})" if self.amount else ""
        return f"{self.at:8.3f} s  {self.kind}{whom}{lasting}{amount}"


def inject(world: World, plan: list[Fault]) -> None:
    """Have these happen in their time."""
    for fault in plan:
        world.at(fault.at, _strike, world, fault)


def _strike(world: World, fault: Fault) -> None:
    if fault.kind in LINK_KINDS:
        _trouble_links(world, fault)
    elif fault.kind in NODE_KINDS:
        _strike_node(world, fault)
    elif fault.target < len(world.clients):
        client = world.clients[fault.target]
        if not client.alive:
            return
        if fault.kind == "pause":
            client.pause(fault.duration)
        elif fault.kind == "interrupt":
            client.interrupt(int(fault.amount))
        elif fault.kind == "wall jump":
            client.cover_pending(fault.kind)
            client.wall.jump(fault.amount)
        else:
            client.crash()
            if world.restart is not None:
                world.at(world.now + fault.duration, world.restart, fault.target)


def _trouble_links(world: World, fault: Fault) -> None:
    ends_at = world.now + fault.duration
    for client in world.clients:
        if fault.target in (EVERYONE, client.machine):
            for link in client.links.values():
                link.begin(fault, ends_at)
                world.at(ends_at, link.end, fault)


def _strike_node(world: World, fault: Fault) -> None:
    node = world.node
    for client in world.clients:
        client.cover_pending(fault.kind)
    if fault.kind == "clock jump":
        node.clock.jump(fault.amount)
        node.wall.jump(fault.amount)
        return
    if fault.kind == "node hang":
        node.hangs_until = max(node.hangs_until, world.now + fault.duration)
        return
    if fault.kind == "node rollback":
        node.forget(world.now - fault.amount)
    elif fault.kind in ("node amnesia", "node flush"):
        node.forget()
    if fault.kind != "node flush" and not node.down:
        node.down = "silent" if fault.target % 2 else "refusing"
        world.at(world.now + fault.duration, _start, world)


def _start(world: World) -> None:
    world.node.down = ""
