"""``holdfast deadlocks``: threads and tasks that wait for each other."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import Any

import holdfast
from holdfast import WaitEdge

from .exits import Status, complain
from .options import JSON, NAMESPACE, URL, Command, Option

__all__ = ["COMMAND", "deadlocks"]

EPILOG = """
Examples:
  holdfast deadlocks
  holdfast deadlocks --json | jq -r '.[][] | "\\(.owner) waits for \\(.name)"'
  holdfast deadlocks --watch

A waiter is seen if it has waited for a second, holds another lock, and does not
ignore deadlocks (deadlock="ignore"). To end a deadlock, break one of its locks
("holdfast break NAME"), or end one of the processes.

Exit status: 0 there is no deadlock, 1 there is one. --watch prints every new
deadlock, until Ctrl-C.
"""

WATCH = Option(("-w", "--watch"), "Look again and again, and print each new deadlock.")

WATCH_SECONDS = 2.0
WATCH_SHARE_MAX = 0.05
"""The largest share of the time spent on looking: if it takes long, it is done more rarely."""

Cycle = tuple[WaitEdge, ...]


def deadlocks(watch: bool, url: str | None, namespace: str, json: bool) -> int:
    """Show which threads and tasks wait for each other, for which locks."""
    from .output import print_lines

    with holdfast.connect(url, namespace=namespace) as client:
        if watch:
            return _watch(client, json)
        cycles = client.deadlocks()
    if json:
        _print_json(cycles)
    elif cycles:
        for cycle in cycles:
            _print(cycle)
    else:
        print_lines("no deadlock")
    return Status.NOTHING_DONE if cycles else Status.OK


def _watch(client: holdfast.Client, json: bool) -> int:
    known: set[frozenset[WaitEdge]] = set()
    is_reachable = True
    while True:
        began = time.monotonic()
        try:
            cycles = client.deadlocks()
        except holdfast.EngineUnavailable as error:
            if is_reachable:
                complain(str(error))
            is_reachable = False
        else:
            is_reachable = True
            new = [cycle for cycle in cycles if frozenset(cycle) not in known]
            known = {frozenset(cycle) for cycle in cycles}
            for cycle in new:
                if json:
                    _print_json_line(cycle)
                else:
                    _print(cycle)
        took = time.monotonic() - began
        threading.Event().wait(max(WATCH_SECONDS, took / WATCH_SHARE_MAX))


def _print(cycle: Cycle) -> None:
    from .output import print_table

    rows = [
        (
            edge.owner,
            edge.name,
            edge.mode,
            edge.held_by,
            str(edge.token),
            "gives up" if edge.is_victim else "",
        )
        for edge in cycle
    ]
    print_table(
        f"deadlock of {len(cycle)}", ("waiter", "waits for", "mode", "held by", "token", "victim"), rows
    )


def _fields(cycle: Cycle) -> list[dict[str, Any]]:
    return [dataclasses.asdict(edge) for edge in cycle]


def _print_json(cycles: tuple[Cycle, ...]) -> None:
    from .output import print_json

    print_json([_fields(cycle) for cycle in cycles])


def _print_json_line(cycle: Cycle) -> None:
    from .output import print_json

    print_json(_fields(cycle), indent=None)


COMMAND = Command(deadlocks, (WATCH, URL, NAMESPACE, JSON), EPILOG)
