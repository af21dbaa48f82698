"""Redis Cluster: masters that share the slots, and optional replicas of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from .errors import ServerFailed
from .group import Group
from .redis import PROGRAM, Redis
from .waiting import until

__all__ = ["ClusterNode", "RedisCluster"]

SLOTS: Final = 16384
SETTLE_SECONDS: Final = 60.0
MIGRATE_MS: Final = 5000


class ClusterNode(Redis):
    """One node. Its second port is the cluster bus between the nodes."""

    kind = "redis-cluster"
    port_names = ("client", "bus")

    @property
    def node_id(self) -> str:
        own: bytes = self.command("CLUSTER", "MYID")
        return own.decode()

    def cluster_info(self) -> dict[str, str]:
        text: str = self.command("CLUSTER", "INFO").decode()
        return dict(line.split(":", 1) for line in text.splitlines())

    def _lines(self) -> Iterator[str]:
        yield from super()._lines()
        yield "cluster-enabled yes"
        yield f"cluster-port {self.ports['bus']}"
        yield "cluster-config-file nodes.conf"
        if self.tls:
            yield "tls-cluster yes"


class RedisCluster(Group[ClusterNode]):
    """By default three masters with equal shares of the slots.

    A node counts as failed when it did not answer for ``node_timeout_ms``: a busy machine needs a long time,
    a test of failovers a shorter one.
    """

    def __init__(
        self,
        masters: int = 3,
        *,
        replicas: int = 0,
        password: str | None = None,
        tls: bool = False,
        node_timeout_ms: int = 5000,
        settings: Mapping[str, str] | None = None,
        program: str = PROGRAM,
    ) -> None:
        """``replicas`` is for each master."""
        lines = {"cluster-node-timeout": str(node_timeout_ms), **(settings or {})}

        def node(first: ClusterNode | None) -> ClusterNode:
            return ClusterNode(
                password=password, tls=tls, settings=lines, certificates_of=first, program=program
            )

        first = node(None)
        super().__init__([first, *(node(first) for _ in range(masters * (1 + replicas) - 1))])
        self._count = masters

    @property
    def masters(self) -> Sequence[ClusterNode]:
        """The nodes that had slots at the beginning."""
        return self.members[: self._count]

    # --- forming the cluster

    def form(self) -> None:
        for number, master in enumerate(self.masters):
            first, last = (SLOTS * each // self._count for each in (number, number + 1))
            master.commands(
                ("CLUSTER", "ADDSLOTSRANGE", first, last - 1),
                ("CLUSTER", "SET-CONFIG-EPOCH", number + 1),
            )
        hub, *others = self.members
        for node in others:
            hub.command("CLUSTER", "MEET", node.host, node.port, node.ports["bus"])
        until(self._all_met, "the nodes do not know each other", SETTLE_SECONDS)
        for number, replica in enumerate(self.members[self._count :]):
            master = self.masters[number % self._count]
            replica.command("CLUSTER", "REPLICATE", master.node_id)

    def settle(self) -> None:
        until(self._all_well, "the cluster is not healthy", SETTLE_SECONDS)

    def _all_met(self) -> bool:
        known = [node.command("CLUSTER", "NODES").decode() for node in self.members]
        return all(
            len(lines.splitlines()) == len(self.members) and "handshake" not in lines for lines in known
        )

    def _all_well(self) -> bool:
        states = [node.cluster_info() for node in self.members]
        replicas = [node.info("replication") for node in self.members[self._count :]]
        return (
            all(state["cluster_state"] == "ok" for state in states)
            and {state["cluster_size"] for state in states} == {str(self._count)}
            and all(info.get("master_link_status", "up") == "up" for info in replicas)
        )

    # --- slots

    def owner(self, slot: int) -> ClusterNode:
        """The node that serves a slot, according to the running nodes."""
        for node in self.members:
            if node.answers() and (found := self._seen_by(node, slot)) is not None:
                return found
        raise ServerFailed(f"no node serves slot {slot}")

    def _seen_by(self, node: ClusterNode, slot: int) -> ClusterNode | None:
        """The owner of a slot, according to one node."""
        for first, last, (_, port, *_rest), *_replicas in node.command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(each for each in self.members if each.port == port)
        return None

    def slot_of(self, key: str | bytes) -> int:
        slot: int = self.members[0].command("CLUSTER", "KEYSLOT", key)
        return slot

    # --- resharding

    def begin_move(self, slot: int, target: ClusterNode) -> None:
        """Open the slot: from now on its owner redirects requests for missing keys to the target (ASK)."""
        source = self.owner(slot)
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.node_id)
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.node_id)

    def move_keys(self, slot: int, target: ClusterNode) -> int:
        """Move the keys of an open slot. Returns their number."""
        source, moved = self.owner(slot), 0
        while keys := source.command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            words: list[str | bytes | float] = ["MIGRATE", target.host, target.port, "", 0, MIGRATE_MS]
            if target.password is not None:
                words += ["AUTH", target.password]
            source.command(*words, "KEYS", *keys)
            moved += len(keys)
        return moved

    def end_move(self, slot: int, target: ClusterNode) -> None:
        """Close the slot: the target owns it, and the other nodes redirect there (MOVED)."""
        others = [each for each in self.members if each is not target and each.answers()]
        masters = [target, *(each for each in others if each.is_replica() is False)]

        def is_agreed() -> bool:
            # A message of the old owner that was under way makes others believe it again, until they know
            # that the target has a later say.
            for node in masters:
                node.command("CLUSTER", "SETSLOT", slot, "NODE", target.node_id)
            epochs = {_epochs(node)[target.node_id] for node in masters}
            return len(epochs) == 1 and all(self._seen_by(node, slot) is target for node in masters)

        until(is_agreed, f"the nodes do not agree on the owner of slot {slot}", SETTLE_SECONDS)

    def move(self, slot: int, target: ClusterNode) -> None:
        """Move a slot with its keys: all three steps."""
        self.begin_move(slot, target)
        self.move_keys(slot, target)
        self.end_move(slot, target)


def _epochs(node: ClusterNode) -> dict[str, str]:
    """The configuration epoch of each node, according to one node."""
    rows = [line.split() for line in node.command("CLUSTER", "NODES").decode().splitlines()]
    return {row[0]: row[6] for row in rows}
