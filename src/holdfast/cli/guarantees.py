"""``holdfast guarantees``: what an engine promises."""

from __future__ import annotations

import holdfast

from .options import JSON, NAMESPACE, URL, Command

__all__ = ["COMMAND", "guarantees"]

EPILOG = """
Examples:
  holdfast guarantees
  holdfast guarantees --url redis://localhost/0 --json | jq -r .scope
"""


def guarantees(url: str | None, namespace: str, json: bool) -> None:
    """Print what the engine guarantees, what it needs for that, and what happens in each kind of fault."""
    from .output import print_json, print_pairs, print_table

    with holdfast.connect(url, namespace=namespace) as client:
        promised = client.guarantees
        shown_url = client.url
    if json:
        print_json(
            {
                "url": shown_url,
                "engine": promised.engine,
                "scope": promised.scope,
                "fencing": promised.fencing,
                "fifo": promised.fifo,
                "crash_release": promised.crash_release,
                "loss_signal": promised.loss_signal,
                "primitives": promised.primitives,
                "needs": promised.needs,
                "faults": promised.faults,
            }
        )
        return
    print_pairs(
        {
            "url": shown_url,
            "engine": promised.engine,
            "scope": promised.scope,
            "fencing": promised.fencing,
            "first come, first served": promised.fifo,
            "when a holder dies": promised.crash_release,
            "a holder learns of loss": promised.loss_signal,
            "primitives": ", ".join(promised.primitives),
            "needs": promised.needs,
        }
    )
    if promised.faults:
        print_table("faults", ("what happens", "and then"), promised.faults.items())


COMMAND = Command(guarantees, (URL, NAMESPACE, JSON), EPILOG)
