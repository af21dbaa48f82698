"""Only who is woken gets anything: nobody looks by itself, loses its place or misses its turn meanwhile.

So a test need not measure how soon a waiter got the lock, which a busy machine puts off.
"""

from __future__ import annotations

from importlib import import_module

__all__ = ["LONG_SECONDS", "TIMES", "be_patient"]

LONG_SECONDS = 600.0

TIMES = (
    "holdfast.protocols.client_state.REFRESH_SECONDS",
    "holdfast.protocols.records.acquisition.POLL_SECONDS_MAX",
    "holdfast.rules.queueing.TURN_SECONDS",
    "holdfast.rules.record.PATIENCE_SECONDS",
    "holdfast.engines.sqlite.shortcuts.PATIENCE_SECONDS",
    "holdfast.engines.sqlite.shortcuts.TURN_SECONDS",
    "holdfast.rules.transitions.PATIENCE_SECONDS",
)


def be_patient() -> None:
    """For a process of the test's own; the test itself has a fixture, ``patient``."""
    for each in TIMES:
        module, _, name = each.rpartition(".")
        setattr(import_module(module), name, LONG_SECONDS)
