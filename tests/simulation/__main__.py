"""``make sim``: random schedules on all cores, a table of what they covered, failures with their plans."""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from simulation.campaign import (
    ALL_SCENARIOS,
    Report,
    campaign_scenario_of,
    describe_failure,
    one_schedule,
    run_campaign,
    shrunk,
)
from simulation.coverage import coverage_table
from simulation.plans import load_plan

TABLE_WIDTH = 230

SHRUNK_AT_MOST = 5
"""Failures beyond these are named, not made smaller."""


def main() -> int:
    options = _options()
    console = Console()
    logging.disable(logging.CRITICAL)  # what scripts log is not news here
    if options.plan:
        return _again(console, options)
    seed = random.randrange(10**9) if options.seed is None else options.seed
    report = Report()
    started = time.monotonic()
    console.print(f"{options.schedules} schedules from seed {seed}, {options.processes} at a time")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("schedules", total=options.schedules, rate="")
        seeds = range(seed, seed + options.schedules)
        for outcome in run_campaign(seeds, options.processes, options.scenario or None):
            report.add(outcome)
            so_far = f"{report.schedules / (time.monotonic() - started):.0f}/s"
            reported = f"[red]{len(report.failures)} failed" if report.failures else "schedules"
            progress.update(task, advance=1, rate=so_far, description=reported)
    seconds = time.monotonic() - started
    wide = Console(width=max(console.width, TABLE_WIDTH))
    wide.print(coverage_table(report.coverage))
    for failure in report.failures[:SHRUNK_AT_MOST]:
        console.print(describe_failure(shrunk(failure)), markup=False, highlight=False, soft_wrap=True)
    if len(report.failures) > SHRUNK_AT_MOST:
        others = ", ".join(str(failure.seed) for failure in report.failures[SHRUNK_AT_MOST:])
        console.print(f"also failed: seeds {others}", soft_wrap=True)
    rate = report.schedules / seconds
    per_core = rate / min(options.processes, os.cpu_count() or 1)
    console.print(
        f"{report.schedules} schedules in {seconds:.1f} s ({rate:.0f}/s, {per_core:.0f}/s per core): "
        f"{report.grants} grants, {report.events} events, {len(report.failures)} failed",
        soft_wrap=True,
    )
    return 1 if report.failures else 0


def _again(console: Console, options: argparse.Namespace) -> int:
    """One schedule, as it was told; of the scenario that a campaign runs with this seed, if none was."""
    seed = options.seed or 0
    outcome = one_schedule(seed, options.scenario or campaign_scenario_of(seed), load_plan(options.plan))
    if outcome.found:
        console.print(describe_failure(outcome), markup=False, highlight=False, soft_wrap=True)
        return 1
    console.print(f"{outcome.scenario}, seed {outcome.seed}: all is well ({outcome.grants} grants)")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--schedules", type=int, default=2000)
    parser.add_argument("--seed", type=lambda text: int(text) if text else None, default=None)
    parser.add_argument("--scenario", choices=("", *ALL_SCENARIOS), default="")
    parser.add_argument("--plan", default="", help="faults as JSON, as a failure prints them")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
