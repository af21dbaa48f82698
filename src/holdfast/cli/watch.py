"""``holdfast watch``: the holders and waiters of locks, as they change."""

from __future__ import annotations

from .options import NAMESPACE, URL, Argument, Command, Misuse, Option

__all__ = ["COMMAND", "watch"]

EPILOG = """
Examples:
  holdfast watch
  holdfast watch nightly-report deploy
  holdfast watch --prefix invoices/
  holdfast watch --json | jq -r 'select(.locked) | .name'

At a terminal, watch shows a table and keeps it up to date. Otherwise it prints
one line for each change.

A change of a watched name is shown at once. These changes are shown within two
seconds: a new name with the prefix, a holder that vanished without a waiter,
and changes of names beyond the first 100. If changes come faster than they can
be shown, watch leaves some out, but never the newest.

If the engine cannot be reached, watch waits until it can. The table says that
it shows an earlier state; without a terminal, standard error says so.

Ctrl-C ends it. The exit status is 128+N after signal N: 130 after Ctrl-C.
"""

NAMES = Argument("name", "The names to watch. The default is every name.", required=False, many=True)
PREFIX = Option(("--prefix",), "Watch every name that begins with this prefix.", metavar="TEXT")
JSON_LINES = Option(("--json",), "Print one line with a JSON document for each change, for programs.")


def watch(name: list[str], prefix: str | None, url: str | None, namespace: str, json: bool) -> int:
    """Watch the holders and waiters of locks, as they change."""
    if name and prefix is not None:
        raise Misuse("give names or --prefix, not both")

    import asyncio

    from .watch_observer import observe

    return asyncio.run(observe(name, prefix or "", url, namespace, json))


COMMAND = Command(watch, (NAMES, PREFIX, URL, NAMESPACE, JSON_LINES), EPILOG)
