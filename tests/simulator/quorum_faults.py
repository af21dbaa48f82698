"""What goes wrong with the nodes of a quorum; everything else goes wrong as it does elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .faults import CLIENT_KINDS, LINK_KINDS, Fault, inject
from .nodes import QuorumNode
from .world import World

__all__ = ["NODE_FAULTS", "QUORUM_FORGETS", "inject_quorum"]

NODE_FAULTS: Final = (
    "node crash",
    "node hang",
    "node slow",
    "node cut",
    "node amnesia",
    "node rollback",
    "node flush",
    "clock jump",
    "clock flicker",
)
"""``target`` is the node. A crash keeps what was stored; amnesia loses it; a rollback loses the last
``amount`` seconds; a flush loses it without a restart; slow and cut concern all links to it. A clock that
flickers is far ahead for a moment: all claims there are over."""

QUORUM_FORGETS: Final = ("node amnesia", "node rollback", "node flush")


def inject_quorum(world: World, nodes: Sequence[QuorumNode], plan: list[Fault]) -> None:
    """Have these happen in their time."""
    inject(world, [fault for fault in plan if fault.kind in (*CLIENT_KINDS, *LINK_KINDS)])
    for fault in plan:
        if fault.kind in NODE_FAULTS:
            world.at(fault.at, _strike, world, nodes[fault.target % len(nodes)], fault)


def _strike(world: World, node: QuorumNode, fault: Fault) -> None:
    for client in world.clients:
        client.cover_pending(fault.kind)
    if fault.kind == "clock jump":
        node.wall.jump(fault.amount)
    elif fault.kind == "clock flicker":
        node.expire()
    elif fault.kind == "node hang":
        node.hangs_until = max(node.hangs_until, world.now + fault.duration)
    elif fault.kind in ("node slow", "node cut"):
        _trouble_links(world, node, fault)
    elif fault.kind == "node flush":
        node.forget()
    elif not node.down:
        node.stop(silent=bool(fault.target % 2))
        if fault.kind == "node amnesia":
            node.forget()
        elif fault.kind == "node rollback":
            node.forget(world.now - fault.amount)
        world.at(world.now + fault.duration, node.start)


def _trouble_links(world: World, node: QuorumNode, fault: Fault) -> None:
    kind = "slow" if fault.kind == "node slow" else "partition"
    ends_at = world.now + fault.duration
    on_link = Fault(fault.at, kind, fault.target, fault.duration, fault.amount)
    for client in world.clients:
        client.links[node].begin(on_link, ends_at)
        world.at(ends_at, client.links[node].end, on_link)
