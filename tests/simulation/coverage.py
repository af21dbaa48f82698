"""Which faults struck which step of which protocol: a table, and what of it must never be empty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.table import Table

__all__ = [
    "ESSENTIAL",
    "PROTOCOLS",
    "QUORUM_ESSENTIAL",
    "SESSIONS_ESSENTIAL",
    "TICKETS_ESSENTIAL",
    "coverage_table",
    "missing_cells",
    "unknown_faults",
    "unknown_steps",
]

Cells = Counter[tuple[str, str]]
"""(kind of fault, step) → how often"""

SESSION_STATEMENTS: Final = (
    "take",
    "wait",
    "undo",
    "release",
    "beat",
    "extend",
    "downgrade",
    "set_value",
)

PROTOCOLS: Final[dict[str, tuple[str, ...]]] = {
    "acquire": ("Acquire", "Acquire, queueing", "Listen", "Wait", "Pause", "Withdraw", "wake-up"),
    "several": ("ApplyInOrder",),
    "release": ("Release",),
    "keeper": ("RenewBatch", "keeper dozes", "Stop"),
    "timer": ("timer dozes",),
    "holding": ("Renew", "SetValue", "Downgrade", "Export", "Adopt"),
    "outside": ("Break", "Resize", "Inspect", "ListNames", "Watch", "Unwatch"),
    "quorum": tuple(
        f"node's {request}"
        for request in ("Acquire", "Stamp", "Renew", "Release", "Export", "Adopt", "Look", "List")
    ),
    "membership": tuple(
        f"node's {request}"
        for request in ("Hello", "Prime", "Start", "Trust", "Rejoin", "Fences", "Raise", "Admit")
    ),
    "tickets": (
        "open_session",
        "keep_alive",
        "create",
        "read_queue",
        "read_tickets",
        "watch",
        "attach",
        "remove",
        "evict",
        "exchange",
        "detach",
        "set_config",
        "set_value",
        "read_note",
        "list_names",
    ),
    "sessions": (
        "session opens",
        "session closes",
        "session ends",
        "notification",
        *(f"{how} {what}" for what in SESSION_STATEMENTS for how in ("send", "await")),
        *(f"query {what}" for what in ("look", "gone", "list", "break", "standing", "end", "cancel")),
        "Sleep",
    ),
    "guard": ("guard advance", "guarded read", "guarded write"),
    "at once": ("Now", "Nonce", "Chance", "Wall", "Unlisten", "Signal"),
}
"""The steps of each protocol, as the driver names them."""

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "lost": ("loss",),
    "reply lost": ("loss of the reply",),
    "late": ("late",),
    "overtaken": ("overtaken",),
    "copied": ("duplicate", "copy"),
    "reply copied": ("duplicate of the reply",),
    "slow": ("slow", "slow of the reply", "node slow"),
    "cut off": ("partition", "partition of the reply", "node cut"),
    "down": ("node down", "node crash"),
    "hangs": ("node hang",),
    "forgets": ("node amnesia", "node rollback", "node flush"),
    "clock set": ("clock jump", "clock flicker"),
    "wall set": ("wall jump",),
    "connection ends": ("cut", "terminate", "idle"),
    "cancelled": ("cancel",),
    "pause": ("pause",),
    "crash": ("crash",),
    "interrupt": ("interrupt",),
}

ESSENTIAL: Final = (
    *((fault, step) for fault in ("lost", "reply lost", "late", "copied") for step in ("Acquire", "Release")),
    *((fault, "Acquire, queueing") for fault in ("lost", "reply lost", "late", "copied", "interrupt")),
    *(
        (fault, step)
        for fault in ("overtaken", "reply copied")
        for step in ("Acquire", "Acquire, queueing", "Release", "RenewBatch")
    ),
    *((fault, "Wait") for fault in ("pause", "crash", "interrupt", "forgets")),
    *((fault, "RenewBatch") for fault in ("lost", "reply lost", "late", "slow", "cut off", "down", "hangs")),
    *((fault, "wake-up") for fault in ("lost", "slow", "cut off")),
    *((fault, "Withdraw") for fault in ("lost", "reply lost", "late", "down")),
    *((fault, "ApplyInOrder") for fault in ("lost", "reply lost", "late", "interrupt")),
    *((fault, "guarded write") for fault in ("lost", "late", "slow", "pause")),
    *((fault, "timer dozes") for fault in ("pause", "crash")),
    *(("interrupt", step) for step in ("Acquire", "Release", "Listen", "Now")),
    *(("slow", step) for step in ("Export", "Adopt", "Downgrade", "SetValue", "Renew", "Break", "Watch")),
    *(("reply lost", step) for step in ("SetValue", "Renew", "Watch")),
)
"""What must have happened in a campaign for it to be worth its name: (column, step)."""

TICKETS_ESSENTIAL: Final = (
    *(
        (fault, step)
        for fault in ("lost", "reply lost", "late", "slow")
        for step in ("create", "read_queue", "remove")
    ),
    *((fault, "keep_alive") for fault in ("lost", "reply lost", "slow", "cut off", "down", "hangs")),
    *((fault, "open_session") for fault in ("reply lost", "slow")),
    *((fault, "Wait") for fault in ("pause", "crash", "interrupt", "wall set")),
    *((fault, "wake-up") for fault in ("lost", "slow", "cut off")),
    *(("interrupt", step) for step in ("create", "read_queue", "remove", "Now")),
    *(("slow", step) for step in ("exchange", "detach", "attach", "evict", "watch")),
    *(("wall set", step) for step in ("keeper dozes", "timer dozes")),
)
"""The same for schedules of the tickets family."""

QUORUM_ESSENTIAL: Final = (
    *(
        (fault, f"node's {step}")
        for fault in ("lost", "reply lost", "overtaken", "copied", "slow", "cut off", "down", "hangs")
        for step in ("Acquire", "Release")
    ),
    *((fault, "node's Renew") for fault in ("overtaken", "copied", "slow", "cut off", "down", "hangs")),
    *((fault, "node's Stamp") for fault in ("slow", "cut off", "down", "hangs")),
    *(
        (fault, "node's Hello")
        for fault in ("lost", "overtaken", "copied", "slow", "cut off", "down", "hangs")
    ),
    *((fault, f"node's {step}") for fault in ("slow", "down") for step in ("Export", "Adopt", "Look")),
    *((fault, "node's Acquire") for fault in ("pause", "crash", "interrupt", "forgets", "clock set")),
    *((fault, "Wait") for fault in ("pause", "crash", "interrupt", "wall set")),
    ("interrupt", "node's Release"),
)
"""The same for schedules on a quorum of nodes."""


SESSIONS_ESSENTIAL: Final = (
    *((fault, "await take") for fault in ("down", "hangs", "interrupt")),
    *(("connection ends", step) for step in ("Wait", "timer dozes", "keeper dozes", "session ends")),
    *(("cancelled", f"send {what}") for what in ("take", "wait", "undo", "release", "beat", "downgrade")),
    *((fault, "send release") for fault in ("lost", "reply lost", "slow", "cut off", "interrupt")),
    *((fault, "send beat") for fault in ("lost", "reply lost", "slow", "cut off")),
    *((fault, "Wait") for fault in ("pause", "crash", "interrupt", "clock set", "down", "hangs", "forgets")),
    *(("interrupt", step) for step in ("send wait", "session opens", "query look", "Now")),
    *(
        ("slow", step)
        for step in ("send undo", "send downgrade", "session opens", "query look", "query cancel")
    ),
)
"""The same for schedules of the sessions family."""


def cell(cells: Cells, column: str, step: str) -> int:
    return sum(cells[fault, step] for fault in COLUMNS[column])


def missing_cells(cells: Cells, essential: Sequence[tuple[str, str]] = ESSENTIAL) -> list[tuple[str, str]]:
    return [(column, step) for column, step in essential if not cell(cells, column, step)]


def unknown_steps(cells: Cells) -> set[str]:
    """Steps that no protocol of the table claims: a new operation wants a row."""
    known = {step for steps in PROTOCOLS.values() for step in steps}
    return {step for _, step in cells} - known


def unknown_faults(cells: Cells) -> set[str]:
    """Faults that no column of the table counts: they would strike unseen."""
    known = {fault for faults in COLUMNS.values() for fault in faults}
    return {fault for fault, _ in cells} - known


def coverage_table(cells: Cells) -> Table:
    table = Table(title="Faults that struck, by step", title_justify="left")
    table.add_column("protocol")
    table.add_column("step", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for protocol, steps in PROTOCOLS.items():
        for index, step in enumerate(steps):
            counts = [cell(cells, column, step) for column in COLUMNS]
            table.add_row(
                "" if index else protocol,
                step,
                *(str(count) if count else "·" for count in counts),
                end_section=index == len(steps) - 1,
            )
    return table
