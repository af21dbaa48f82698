"""``holdfast doctor``: what can be found out about the very server that a URL names."""

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

It takes no lock and leaves nothing behind. Where it asks for something that it
has no right to, the server may note that down (Redis: ACL LOG).

Exit status: 0 when nothing is wrong, 1 when something fails or is warned of,
69 when the engine cannot be reached.
"""

IO_TIMEOUT = Option(
    ("--io-timeout",),
    "Wait this long for each answer.",
    metavar="TIME",
    convert=duration,
    default=5.0,
    shown_default="5s",
)


def doctor(url: str | None, namespace: str, io_timeout: float, json: bool) -> int:
    """Examine a server: is the connection encrypted, do clocks agree, which rights are missing or too many,
    and do the guarantees hold there."""
    found = library.examine(url, namespace=namespace, io_timeout=io_timeout)
    if json:
        print_json([{"topic": each.topic, "status": each.status, "text": each.text} for each in found])
    else:
        print_table("", ("topic", "", "found"), [(each.topic, each.status, each.text) for each in found])
    is_well = all(each.status in ("ok", "unknown") for each in found)
    return Status.OK if is_well else Status.NOTHING_DONE


COMMAND = Command(doctor, (URL, NAMESPACE, IO_TIMEOUT, JSON), EPILOG)
