"""``holdfast leader``: who leads an election."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import holdfast

from .exits import Status
from .options import NAMESPACE, URL, Argument, Command, Option

if TYPE_CHECKING:
    from holdfast import Leader

__all__ = ["COMMAND", "leader"]

EPILOG = """
Examples:
  holdfast leader scheduler
  holdfast leader database --json | jq -r .value
  holdfast leader database --watch

With --watch it prints one line for the present leader and one for every change,
until a signal ends it. If the engine cannot be reached meanwhile, it waits until
it can.

Exit status: 0 if there is a leader, 1 if there is none.
"""

PARAMS = (
    Argument("name", "The name of the election."),
    Option(("--watch",), "Print every change, until a signal comes."),
    URL,
    NAMESPACE,
    Option(("--json",), "Print a JSON document for programs; with --watch, one in each line."),
)


def leader(name: str, watch: bool, url: str | None, namespace: str, json: bool) -> int:
    """Show who leads an election, and what it proclaims."""
    with holdfast.connect(url, namespace=namespace) as client:
        election = client.election(name)
        if watch:
            for each in election.observe():
                _print_line(name, each, json)
        found = election.leader()
    if json:
        from .output import print_json

        print_json(_as_json(name, found))
    elif found is None:
        from .output import print_lines

        print_lines(f"{name} has no leader")
    else:
        from .output import print_pairs

        print_pairs({"leader": found.owner, "value": _text(found.value), "term": str(found.token)})
    return Status.OK if found is not None else Status.NOTHING_DONE


def _print_line(name: str, found: Leader | None, json: bool) -> None:
    from .output import print_json, print_lines

    if json:
        print_json(_as_json(name, found), indent=None)
    elif found is None:
        print_lines("no leader")
    else:
        print_lines(f"{found.owner} term {found.token} {_text(found.value)}".rstrip())


def _as_json(name: str, found: Leader | None) -> dict[str, object]:
    """A stable document: fields are added, never renamed. ``value`` is null where it is not text."""
    document: dict[str, object] = {"name": name, "leader": None, "token": None, "value": None}
    if found is None:
        return {**document, "value_base64": None}
    try:
        text = found.value.decode()
    except UnicodeDecodeError:
        text = None
    encoded = base64.b64encode(found.value).decode()
    return {**document, "leader": found.owner, "token": found.token, "value": text, "value_base64": encoded}


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


COMMAND = Command(leader, PARAMS, EPILOG)
