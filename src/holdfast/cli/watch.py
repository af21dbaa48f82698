"""``holdfast watch``: who holds what and who waits, as it changes."""

from __future__ import annotations

from .options import NAMESPACE, URL, Argument, Command, Misuse, Option

__all__ = ["COMMAND", "watch"]

EPILOG = """
Examples:
  holdfast watch
  holdfast watch nightly-report deploy
  holdfast watch --prefix invoices/
  holdfast watch --json | jq -r 'select(.locked) | .name'

Changes of a watched name come at once, by subscription. A new name below a
prefix, and a holder that vanished while nobody waited, show after 2 seconds;
so do changes beyond the first 100 names. When changes come faster than they
can be shown some are left out, but never the newest.

An engine that goes away is waited for: what is shown meanwhile is what was last
seen, and says so; elsewhere than at a terminal standard error does.

At a terminal it is a table that is kept current; elsewhere each change is a
line. It ends with Ctrl-C and, as a program does that a signal ended, with
exit status 128+N: 130.
"""

NAMES = Argument("name", "What to watch; without any, every name.", required=False, many=True)
PREFIX = Option(("--prefix",), "Every name that begins with this.", metavar="TEXT")
JSON_LINES = Option(("--json",), "Print one JSON document per line and change, for programs.")


def watch(name: list[str], prefix: str | None, url: str | None, namespace: str, json: bool) -> int:
    """Watch locks change hands: their holders and those who wait, as it happens."""
    if name and prefix is not None:
        raise Misuse("give names or --prefix, not both")

    import asyncio

    from .watch_observer import observe

    return asyncio.run(observe(name, prefix or "", url, namespace, json))


COMMAND = Command(watch, (NAMES, PREFIX, URL, NAMESPACE, JSON_LINES), EPILOG)
