"""``holdfast ls``: every name that is in use."""

from __future__ import annotations

from typing import Annotated

import typer

import holdfast

from .options import DEFAULT_NAMESPACE, Json, Namespace, Url

__all__ = ["EPILOG", "ls"]

EPILOG = """\b
Examples:
  holdfast ls
  holdfast ls invoices/
  holdfast ls --json | jq -r '.[] | select(.locked) | .name'
"""

Prefix = Annotated[
    str, typer.Argument(metavar="PREFIX", help="Only names that begin with this.", show_default=False)
]


def ls(
    prefix: Prefix = "", url: Url = None, namespace: Namespace = DEFAULT_NAMESPACE, json: Json = False
) -> None:
    """List locks: what they are, who holds them, how many wait."""
    from .describe import as_json, state
    from .output import age, print_json, print_table

    with holdfast.connect(url, namespace=namespace) as client:
        locks = sorted(client.list(prefix), key=lambda lock: lock.name)
    if json:
        print_json([as_json(lock) for lock in locks])
        return
    rows = []
    for lock in locks:
        first = lock.holders[0] if lock.holders else None
        more = f" and {len(lock.holders) - 1} more" if len(lock.holders) > 1 else ""
        rows.append(
            (
                lock.name,
                lock.kind or "",
                state(lock),
                f"{first.owner}{more}" if first else "",
                age(first.age) if first else "",
                str(len(lock.waiters)),
                str(lock.token),
            )
        )
    print_table("", ("name", "kind", "state", "held by", "for", "waiting", "newest token"), rows)
