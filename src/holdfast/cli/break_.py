"""``holdfast break``: take a lock away from its holder."""

from __future__ import annotations

import holdfast

from .exits import Status, complain
from .options import JSON, NAME, NAMESPACE, URL, Command, Option, number

__all__ = ["COMMAND", "break_"]

EPILOG = """
Examples (first show the holder and its token):
  holdfast show nightly-report
  holdfast break nightly-report --token 1763209000123456 --reason "db3 is off"

Exit status: 0 if the lock was broken, 1 if there was nothing to break.
"""

REASON = Option(("--reason",), "The reason, which is reported to the holder.", metavar="TEXT", required=True)
TOKEN = Option(
    ("--token",),
    "Break the lock only if the grant with this token still holds it.",
    metavar="N",
    convert=number(),
)


def break_(name: str, reason: str, token: int | None, url: str | None, namespace: str, json: bool) -> int:
    """Release a lock by force.

    The holder is notified that its lock is lost. The notification may come too late to stop its writes.
    Before you do anything else, advance the guards of the protected resources to the new token.
    """
    from .output import print_json, print_lines

    with holdfast.connect(url, namespace=namespace) as client:
        newest = client.break_lock(name, token=token, reason=reason)
    if json:
        print_json({"name": name, "broken": newest is not None, "token": newest})
    elif newest is not None:
        print_lines(f"broke {name!r}; its newest token is now {newest}")
    elif token is None:
        complain(f"{name!r} is not held")
    else:
        complain(f"the grant with token {token} does not hold {name!r}")
    return Status.OK if newest is not None else Status.NOTHING_DONE


COMMAND = Command(break_, (NAME, REASON, TOKEN, URL, NAMESPACE, JSON), EPILOG)
