"""The command line: choose, measure with a progress display, write JSON, tables and plots."""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from . import machine, plots, tables, targets
from .contestant import MeasurementInvalid
from .engines import GROUPS, Group, chosen
from .interleaving import Bench
from .measures import MEASURES, Measure
from .results import Result

__all__ = ["main"]

HERE = Path(__file__).resolve().parent


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    console = Console(stderr=True)
    groups = chosen(options.engines, options.contestants)
    say_who_is_missing(console, options.engines)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.folder) as name:
        folder = Path(name)
        facts = machine.describe((each for group in groups for each in group.contestants), folder)
        run = Run(options, groups, folder)
        with progress_display(console) as progress:
            run.measure_all(progress)
    outcomes = targets.compare(run.results)
    write(options, facts, run, outcomes)
    console.print(Markdown(tables.targets_section(outcomes)))
    for title, text in run.failures.items():
        console.print(f"{title} failed: {text}", style="red", markup=False)
    console.print(f"Tables, plots and JSON: {shown_folder(options.results)}", highlight=False)
    return 1 if run.failures else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--engines", type=some_of(GROUPS), default=list(GROUPS), help=f"of {', '.join(GROUPS)}"
    )
    parser.add_argument(
        "--contestants",
        type=some_of(dict.fromkeys(each.key for group in GROUPS.values() for each in group.contestants)),
        help="only these, by their keys in the JSON",
    )
    parser.add_argument(
        "--measures", type=some_of(MEASURES), default=list(MEASURES), help=f"of {', '.join(MEASURES)}"
    )
    parser.add_argument("--seconds", type=positive, help="for each measurement, instead of its own time")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder to write to")
    parser.add_argument(
        "--folder", type=Path, help="where the locks lie meanwhile; the temporary folder if not said"
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="the smallest sizes, to see that everything works; numbers mean nothing",
    )
    return parser.parse_args(arguments)


def some_of(known: Iterable[str]) -> Any:
    """An argument type: names separated by commas, in the order in which they are known."""

    def names(text: str) -> list[str]:
        wanted = {name.strip() for name in text.split(",") if name.strip()}
        unknown = wanted - set(known)
        if unknown or not wanted:
            raise argparse.ArgumentTypeError(f"{text!r}: choose from {', '.join(known)}")
        return [name for name in known if name in wanted]

    return names


def positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r}: more than 0")
    return value


def say_who_is_missing(console: Console, engines: Iterable[str]) -> None:
    missing = [each.label for name in engines for each in GROUPS[name].contestants if not each.present]
    if missing:
        console.print(f"not installed, left out: {', '.join(missing)}", style="yellow")


def progress_display(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>10}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[doing]}", style="dim"),
        console=console,
    )


@dataclass(slots=True)
class Run:
    """All measurements of one run. One that fails is reported at the end and does not stop the others."""

    options: argparse.Namespace
    groups: tuple[Group, ...]
    folder: Path
    results: dict[str, Result] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def measure_all(self, progress: Progress) -> None:
        wanted = {name: MEASURES[name] for name in self.options.measures if self.possible(MEASURES[name])}
        tasks = {
            name: progress.add_task(name, total=self.time_for(measure), doing="", start=False)
            for name, measure in wanted.items()
        }
        for name, measure in wanted.items():
            progress.start_task(tasks[name])
            self.measure_one(name, measure, progress, tasks[name])

    def possible(self, measure: Measure) -> bool:
        abilities = {
            ability for group in self.groups for each in group.contestants for ability in each.abilities
        }
        return not measure.needs or bool(measure.needs & abilities)

    def time_for(self, measure: Measure) -> float:
        if self.options.smoke:
            return self.options.seconds or 0.0
        return float(self.options.seconds or measure.seconds)

    def measure_one(self, name: str, measure: Measure, progress: Progress, task: TaskID) -> None:
        def report(done_seconds: float, doing: str) -> None:
            # A last round may run over the time; the bar is full, and its clock stops, at the end only.
            progress.update(task, completed=min(done_seconds, 0.99 * seconds), doing=doing)

        seconds = self.time_for(measure)
        bench = Bench(
            self.groups,
            self.folder / name,
            seconds,
            1 if self.options.smoke or self.options.seconds else measure.least_rounds,
            self.options.smoke,
            report,
        )
        began = time.monotonic()
        try:
            self.results[name] = measure.run(bench)
            doing = f"{self.results[name].rounds} rounds"
        except MeasurementInvalid as error:
            self.failures[name], doing = str(error), "failed"
        except Exception:  # noqa: BLE001 - minutes of other measurements are worth keeping
            self.failures[name], doing = traceback.format_exc(), "failed"
        self.seconds[name] = round(time.monotonic() - began, 1)
        progress.update(task, total=1, completed=1, doing=doing)
        progress.stop_task(task)


def write(
    options: argparse.Namespace, facts: Mapping[str, Any], run: Run, outcomes: Sequence[targets.Outcome]
) -> None:
    options.results.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": facts,
        "smoke": options.smoke,
        "seconds": run.seconds,
        "targets": [outcome.as_json() for outcome in outcomes],
        "measures": {name: result.as_json() for name, result in run.results.items()},
        "failures": run.failures,
    }
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    (options.results / "results.json").write_text(text + "\n")
    (options.results / "README.md").write_text(tables.report(facts, run.results, run.failures, outcomes))
    if plots.can_draw():
        for result in run.results.values():
            plots.draw(result, options.results)


def shown_folder(path: Path) -> str:
    resolved = path.resolve()
    root = HERE.parent
    return str(resolved.relative_to(root)) if resolved.is_relative_to(root) else str(path)
