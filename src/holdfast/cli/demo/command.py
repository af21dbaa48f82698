"""The command ``holdfast demo``: its options, and the summary at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exits import Status
from ..options import JSON, Command, Option, number

if TYPE_CHECKING:
    from .play import Performance

__all__ = ["COMMAND", "demo"]

EPILOG = """
Examples:
  holdfast demo
  holdfast demo --scene 3 --scene 4
  holdfast demo --json | jq .right

Scenes:
  1  twenty servers fire the same cron job, and one runs it
  2  ten buyers, one unit left, nothing oversold
  3  a holder is stopped for longer than its ttl; its late write is refused
  4  a holder is killed, and the next goes on at once

The demo uses a temporary folder with its own database, and does not touch your
locks. It takes about ten seconds, or a few if its output is not a terminal.
Exit status: 0 if everything was right, 1 if something was wrong, 130 after
Ctrl-C.
"""

ALL_SCENES = (1, 2, 3, 4)
STATUS_IF_WRONG = 1

SCENES = Option(
    ("--scene",),
    "Play only this scene. It may be given several times.",
    metavar="N",
    convert=number(ALL_SCENES[0], ALL_SCENES[-1]),
    many=True,
)


def demo(scene: list[int], json: bool) -> int:
    """Demonstrate locks with real processes, and measure them."""
    from ..signals import Interrupted
    from .play import perform
    from .stages import stage_for

    try:
        with stage_for(json) as stage:
            performance = perform(scene or ALL_SCENES, stage)
    except Interrupted as interruption:
        return Status.SIGNAL + interruption.signum
    _summarise(performance, json)
    return Status.OK if performance.right else STATUS_IF_WRONG


def _summarise(performance: Performance, json: bool) -> None:
    from ..output import print_json, print_lines, print_table

    if json:
        print_json(
            {
                "right": performance.right,
                "processes": performance.processes,
                "start_seconds": performance.start_seconds,
                "seconds": performance.seconds,
                "scenes": [outcome.as_json() for outcome in performance.outcomes],
            }
        )
        return
    rows = [
        (str(outcome.number) if first else "", check.what, check.measured, check.verdict)
        for outcome in performance.outcomes
        for first, check in zip((True, *[False] * len(outcome.checks)), outcome.checks, strict=False)
    ]
    print_lines("")
    print_table("", ("scene", "checked", "measured", ""), rows)
    verdict = "Everything was right" if performance.right else "Something was WRONG"
    print_lines(f"{verdict}. {performance.processes} real processes, {performance.seconds:.1f} s.")


COMMAND = Command(demo, (SCENES, JSON), EPILOG)
