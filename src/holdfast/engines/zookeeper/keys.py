"""The nodes: one for each name, and one for each session.

    <prefix>/<namespace>/n/<name>                              a name
    <prefix>/<namespace>/n/<name>/<kind>                       its kind: lock, rwlock, semaphore-<limit>.
                                                               Written with every ticket, so its mzxid
                                                               tells the newest token
    <prefix>/<namespace>/n/<name>/<kind>/x_<nonce>_<session>_<number>       a ticket
    <prefix>/<namespace>/n/<name>/limit                        a semaphore's limit, where it was changed
    <prefix>/<namespace>/n/<name>/value                        the value of the name
    <prefix>/<namespace>/d/<name>                              a cell
    <prefix>/<namespace>/s/<session>                           exists as long as the session does; it holds
                                                               notices of other clients for its client

All but the prefix are containers, which the server deletes when they have been empty for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from ...rules.tickets import LockConfig, Ticket, ordered

__all__ = [
    "SEQUENCE_MODULUS",
    "Handle",
    "Paths",
    "config_from_children",
    "decode",
    "encode",
    "in_order",
    "kind_node",
    "nearest_children",
    "order_of",
    "ticket_node",
    "tickets_from_children",
]

RESERVED: Final = (".", "..", "zookeeper")

LETTERS: Final = {"exclusive": "x", "write": "w", "read": "r", "permit": "p"}
MODES: Final = {letter: mode for mode, letter in LETTERS.items()}

PREFIXES: Final = tuple([f"{letter}_" for letter in MODES])

SEQUENCE_MODULUS: Final = 1 << 32
"""Sequence numbers have 32 bits and wrap around."""


class Handle(NamedTuple):
    """The node of a ticket, its session and its version."""

    path: str
    session: str
    version: int = 0


class Paths:
    """The nodes of one namespace."""

    __slots__ = ("base", "cells", "names", "prefix", "sessions")

    def __init__(self, prefix: str, namespace: str) -> None:
        self.prefix = prefix
        self.base = f"{prefix}/{encode(namespace)}"
        self.names = f"{self.base}/n"
        self.sessions = f"{self.base}/s"
        self.cells = f"{self.base}/d"

    def name(self, name: str) -> str:
        return f"{self.names}/{encode(name)}"

    def cell(self, name: str) -> str:
        return f"{self.cells}/{encode(name)}"

    def kind(self, name: str, kind: str, declared: int) -> str:
        return f"{self.names}/{encode(name)}/{kind_node(kind, declared)}"

    def session(self, session: str) -> str:
        return f"{self.sessions}/{session}"


def encode(name: str) -> str:
    """Any text as the name of a node, and a different one for each."""
    if name in RESERVED:
        return "".join([f"%{ord(character):02X}" for character in name])
    return quote(name, safe="")


def decode(node: str) -> str:
    return unquote(node)


def kind_node(kind: str, declared: int) -> str:
    return f"{kind}-{declared}" if kind == "semaphore" else kind


def config_from_children(children: Iterable[str]) -> LockConfig | None:
    """The configuration of a name, by its child nodes."""
    for child in children:
        kind, _, declared = child.partition("-")
        if kind in ("lock", "rwlock"):
            return LockConfig(kind)
        if kind == "semaphore":
            return LockConfig(kind, int(declared), int(declared))
    return None


def ticket_node(mode: str, nonce: str, session: str, order: int = 0) -> str:
    """``order``: 0 leaves the sequence number to the server."""
    number = "" if not order else f"{_signed((order - 1) % SEQUENCE_MODULUS):010d}"
    return f"{LETTERS[mode]}_{nonce}_{session}_{number}"


def _signed(number: int) -> int:
    return number if number < SEQUENCE_MODULUS // 2 else number - SEQUENCE_MODULUS


def order_of(path: str) -> int:
    """The order of a ticket whose sequence number the server assigned. Orders begin with 1."""
    return int(path[path.rindex("_") + 1 :]) % SEQUENCE_MODULUS + 1


def nearest_children(nonce: str, children: Iterable[str]) -> Sequence[str]:
    """Of the nodes of a mutex, the first, that of this attempt, and the one right before it: parsing a long
    queue would be slow."""
    nodes = [
        (order_of(child), child) for child in children if child[:2] in PREFIXES and child.count("_") == 3
    ]
    nodes.sort()
    if not nodes or nodes[-1][0] - nodes[0][0] > SEQUENCE_MODULUS // 2:
        return [child for _, child in nodes]  # the numbers have just wrapped around: all are needed
    mine = next((index for index, (_, child) in enumerate(nodes) if child[2:].startswith(f"{nonce}_")), 0)
    return [nodes[index][1] for index in sorted({0, max(mine - 1, 0), mine})]


def tickets_from_children(folder: str, kind: str, children: Iterable[str]) -> tuple[Ticket, ...]:
    """Tickets by the names of their nodes, in order; other nodes are ignored."""
    found = []
    for child in children:
        parts = child.split("_")
        if len(parts) == 4 and parts[0] in MODES:
            letter, nonce, session, _ = parts
            handle = Handle(f"{folder}/{child}", session)
            found.append(_ticket(order_of(child), nonce, kind, MODES[letter], handle))
    return in_order(found)


def _ticket(order: int, nonce: str, kind: str, mode: str, handle: Any) -> Ticket:
    return Ticket(order, 0, nonce, nonce.rpartition("-")[0], "", kind, mode, 0.0, 0.0, None, {}, handle)


def in_order(tickets: Sequence[Ticket]) -> tuple[Ticket, ...]:
    """In order, also where the sequence numbers have just wrapped around."""
    if len(tickets) > 1:
        orders = [ticket.order for ticket in tickets]
        if max(orders) - min(orders) > SEQUENCE_MODULUS // 2:
            tickets = [
                t if t.order > SEQUENCE_MODULUS // 2 else t._replace(order=t.order + SEQUENCE_MODULUS)
                for t in tickets
            ]
    return ordered(tickets)
