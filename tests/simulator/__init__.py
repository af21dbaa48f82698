"""The simulation driver: the shipped scripts in virtual time, one thread, everything decided by one seed.

A ``World`` is a heap of events in true time. In it run clients (each with a book, a local clock that drifts,
worker scripts, its keeper and its timer), a node (records moved by the rules, by a clock of its own) and the
links between them. Clients pause, crash and start anew; nodes crash, hang, forget and have their clocks set;
links lose, delay, duplicate and reorder. What goes wrong and when is a plan: a list of ``Fault`` values, so
that a failure can be replayed exactly and its plan made smaller.

Whatever happens is written down as a trace of events; who checks the trace, and what the workers do, is not
known here.
"""

from __future__ import annotations

from .client import Ask, Crash, Interrupted, SimulatedClient, SimulatedWakeup, Task, step_of
from .faults import KINDS, NODE_KINDS, Fault, inject
from .network import Link
from .nodes import QuorumNode
from .quorum import QuorumClient
from .quorum_faults import NODE_FAULTS, QUORUM_FORGETS, inject_quorum
from .servers import Node, Server
from .trace import (
    Began,
    Changed,
    Copied,
    Crashed,
    Event,
    Forgot,
    LetGo,
    Moved,
    Noted,
    Stopped,
    Told,
)
from .world import Clock, Livelock, World

__all__ = [
    "KINDS",
    "NODE_FAULTS",
    "NODE_KINDS",
    "QUORUM_FORGETS",
    "Ask",
    "Began",
    "Changed",
    "Clock",
    "Copied",
    "Crash",
    "Crashed",
    "Event",
    "Fault",
    "Forgot",
    "Interrupted",
    "LetGo",
    "Link",
    "Livelock",
    "Moved",
    "Node",
    "Noted",
    "QuorumClient",
    "QuorumNode",
    "Server",
    "SimulatedClient",
    "SimulatedWakeup",
    "Stopped",
    "Task",
    "Told",
    "World",
    "inject",
    "inject_quorum",
    "step_of",
]
