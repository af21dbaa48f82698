"""``holdfast ls``: all names in use."""

from __future__ import annotations

import holdfast

from .options import JSON, NAMESPACE, URL, Argument, Command, Option

__all__ = ["COMMAND", "ls"]

EPILOG = """
Examples:
  holdfast ls
  holdfast ls invoices/
  holdfast ls --all
  holdfast ls --json | jq -r '.[] | select(.locked) | .name'
"""

PREFIX = Argument("prefix", "List only names that begin with this prefix.", required=False)
ALL = Option(("-a", "--all"), "Also list free names that carry a value.")


def ls(prefix: str | None, all: bool, url: str | None, namespace: str, json: bool) -> None:
    """List locks that are held or waited for: their kinds, their holders, the number of waiters."""
    from .describe import as_json, state
    from .output import age, print_json, print_lines, print_table

    with holdfast.connect(url, namespace=namespace) as client:
        found = sorted(client.list(prefix or ""), key=lambda lock: lock.name)
    locks = [lock for lock in found if all or lock.holders or lock.waiters]
    if json:
        print_json([as_json(lock) for lock in locks])
        return
    if not locks:
        where = f" with the prefix {prefix!r}" if prefix else ""
        more = f" ({len(found)} free with a value, shown by --all)" if found else ""
        print_lines(f"no lock is held{where}{more}")
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


COMMAND = Command(ls, (PREFIX, ALL, URL, NAMESPACE, JSON), EPILOG)
