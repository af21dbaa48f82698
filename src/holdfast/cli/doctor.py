"""``holdfast doctor``: checks of the server that a URL names."""

from __future__ import annotations

from holdfast import doctor as library

from .exits import Status
from .options import JSON, NAMESPACE, URL, Command, Option, duration
from .output import print_json, print_table

__all__ = ["COMMAND", "doctor"]

EPILOG = """
Examples:
  holdfast doctor
  holdfast doctor --url rediss://cache.example.org/0
  holdfast doctor --json | jq -r '.[] | select(.status != "ok") | .text'

It takes no lock and leaves nothing in the server. A request that the user has
no right to make may appear in a log of the server (Redis: ACL LOG).

Exit status: 0 if every check passed, 1 if a check failed or gave a warning,
69 if the engine cannot be reached.
"""

IO_TIMEOUT = Option(
    ("--io-timeout",),
    "How long to wait for each reply.",
    metavar="TIME",
    convert=duration,
    default=5.0,
    shown_default="5s",
)


def doctor(url: str | None, namespace: str, io_timeout: float, json: bool) -> int:
    """Check a server: whether the connection is encrypted, the clocks agree, the user has the right
    permissions, and the guarantees hold."""
    found = library.examine(url, namespace=namespace, io_timeout=io_timeout)
    if json:
        print_json([{"topic": each.topic, "status": each.status, "text": each.text} for each in found])
    else:
        print_table("", ("topic", "", "found"), [(each.topic, each.status, each.text) for each in found])
    is_well = all(each.status in ("ok", "unknown") for each in found)
    return Status.OK if is_well else Status.NOTHING_DONE


COMMAND = Command(doctor, (URL, NAMESPACE, IO_TIMEOUT, JSON), EPILOG)
