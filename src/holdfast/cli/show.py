"""``holdfast show``: one name, its holders and its queue."""

from __future__ import annotations

import holdfast

from .options import JSON, NAME, NAMESPACE, URL, Command

__all__ = ["COMMAND", "show"]

EPILOG = """
Examples:
  holdfast show nightly-report
  holdfast show nightly-report --json | jq '.holders[0].pid'
"""


def show(name: str, url: str | None, namespace: str, json: bool) -> None:
    """Show the holders of a lock with their ages and tokens, and its waiters in order."""
    from .describe import as_json, holder_row, state
    from .output import age, print_json, print_pairs, print_table

    with holdfast.connect(url, namespace=namespace) as client:
        lock = client.inspect(name)
    if json:
        print_json(as_json(lock))
        return
    pairs = {"name": lock.name, "kind": lock.kind or "never used", "state": state(lock)}
    if lock.token:
        pairs["newest token"] = str(lock.token)
    if lock.value is not None:
        pairs["value"] = lock.value.decode(errors="backslashreplace")
    print_pairs(pairs)
    if lock.holders:
        columns = ("holder", "mode", "token", "for", "expires in", "what")
        print_table("holders", columns, map(holder_row, lock.holders))
    if lock.waiters:
        rows = [
            (str(place), waiter.owner, waiter.mode, age(waiter.age))
            for place, waiter in enumerate(lock.waiters, 1)
        ]
        print_table("waiting, in order", ("", "waiter", "mode", "for"), rows)


COMMAND = Command(show, (NAME, URL, NAMESPACE, JSON), EPILOG)
