"""The command line: choose, measure with a progress display, write JSON, tables and plots."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from . import reporting, tables
from .engines import GROUPS
from .measures import MEASURES
from .running import GroupRun, Options

__all__ = ["main"]

HERE = Path(__file__).resolve().parent


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parse(arguments)
    console = Console(stderr=True)
    options = Options(chosen.measures, chosen.contestants, chosen.seconds, chosen.smoke)
    failed = False
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=chosen.folder) as folder:
        for name in chosen.engines:
            run = GroupRun(name, GROUPS[name].limited_to(options.contestants), options, Path(folder) / name)
            say_who_is_missing(console, name)
            with progress_display(console) as progress:
                run.measure_all(progress)
            outcomes = reporting.write(chosen.results / name, run)
            console.print(Markdown(tables.targets_section(outcomes)))
            for title, text in run.failures.items():
                console.print(f"{name}, {title} failed: {text}", style="red", markup=False)
            failed = failed or bool(run.failures)
    reporting.write_index(chosen.results)
    console.print(f"Tables, plots and JSON: {shown_folder(chosen.results)}", highlight=False)
    return 1 if failed else 0


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


def say_who_is_missing(console: Console, engine: str) -> None:
    missing = [each.label for each in GROUPS[engine].contestants if not each.present]
    if missing:
        console.print(f"{engine}: not installed, left out: {', '.join(missing)}", style="yellow")


def progress_display(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description:>22}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[doing]}", style="dim"),
        console=console,
    )


def shown_folder(path: Path) -> str:
    resolved = path.resolve()
    root = HERE.parent
    return str(resolved.relative_to(root)) if resolved.is_relative_to(root) else str(path)
