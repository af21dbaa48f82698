"""``holdfast deadlocks``: two processes that wait for each other, as another one sees them."""

from __future__ import annotations

import json

import holdfast
from cli.tools import CommandLine
from support import Process

TAKE_TWO = """
import sys
import holdfast

locks = holdfast.connect()
with locks.lock(sys.argv[1]):
    print("held", flush=True)
    input()
    try:
        with locks.lock(sys.argv[2], deadlock=sys.argv[3]) as lease:
            print("granted", flush=True)
    except holdfast.Deadlock:
        print("deadlock", flush=True)
"""


def start_two(command_line: CommandLine) -> list[Process]:
    both = [command_line.script(TAKE_TWO, *names, "warn") for names in (("x", "y"), ("y", "x"))]
    for each in both:
        each.expect("held")
    for each in both:
        each.send("go on")
    return both


def test_what_is_shown(command_line: CommandLine, locks: holdfast.Client) -> None:
    assert "no deadlock" in command_line.start("deadlocks").succeed()
    assert json.loads(command_line.start("deadlocks", "--json").succeed()) == []
    watching = command_line.start("deadlocks", "--watch", "--json")
    both = start_two(command_line)
    cycle = json.loads(watching.expect())
    assert {(edge["name"], edge["mode"], edge["is_victim"]) for edge in cycle} == {
        ("x", "exclusive", False),
        ("y", "exclusive", False),
    }
    assert {int(edge["owner"].split("/")[1]) for edge in cycle} == {each.pid for each in both}
    shown = command_line.start("deadlocks")
    shown.expect("deadlock of 2")
    assert shown.wait() == 1
    locks.break_lock("x", reason="the end of the test")
    both[1].expect("granted")
