"""All measurements of one group of contestants, one after the other, on servers of its own."""

from __future__ import annotations

import textwrap
import time
import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.progress import Progress, TaskID

from . import machine
from .contestant import MeasurementInvalid, Place
from .engines import Group
from .interleaving import Bench, Reporter
from .measures import MEASURES, Measure
from .measures.exclusion import prove_exclusion
from .results import Result
from .service import Service

__all__ = ["GroupRun", "Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for."""

    measures: Collection[str]
    contestants: Collection[str] | None
    seconds: float | None
    smoke: bool

    def seconds_for(self, measure: Measure, contestants: int) -> float:
        if self.smoke:
            return self.seconds or 0.0
        return self.seconds or measure.seconds_for(contestants)

    def least_rounds(self, measure: Measure) -> int:
        return 1 if self.smoke or self.seconds else measure.least_rounds


@dataclass(slots=True)
class GroupRun:
    """A measurement that fails is reported at the end and does not stop the others."""

    name: str
    group: Group
    options: Options
    folder: Path
    facts: Mapping[str, Any] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Peers that do not even exclude, or do not work here: label → what went wrong."""

    def measure_all(self, progress: Progress) -> None:
        self.folder.mkdir()
        began, processors = time.monotonic(), machine.processor_time()
        try:
            with self.group.serve() as service:
                self.facts = machine.describe(self.group.contestants, service, self.folder)
                self.qualify(service)
                self.measure_each(service, progress)
        except MeasurementInvalid as error:
            self.failures["all"] = str(error)
        except Exception:  # noqa: BLE001 - the other groups are worth measuring
            self.failures["all"] = traceback.format_exc()
        self.seconds["all"] = round(time.monotonic() - began, 1)
        self.facts = {**self.facts, "stolen": round(machine.stolen_since(processors), 4)}

    def qualify(self, service: Service) -> None:
        """Only who excludes is measured. A peer that does not is left out; else nothing makes sense."""
        for each in self.group.contestants if self.group.locks else ():
            place = Place(self.folder / "exclusion" / each.key, f"exclusion-{each.key}", service.addresses)
            try:
                prove_exclusion(each, place)
            except MeasurementInvalid as error:
                if each.role != "peer":
                    raise
                self.left_out[each.label] = _in_short(error)
                self.group = self.group.without(each)

    def measure_each(self, service: Service, progress: Progress) -> None:
        wanted = {
            name: MEASURES[name]
            for name in MEASURES
            if name in self.group.measures
            and name in self.options.measures
            and MEASURES[name].those_of(self.group.contestants)
        }
        tasks = {name: progress.add_task(f"{self.name} {name}", doing="", start=False) for name in wanted}
        for name, measure in wanted.items():
            progress.start_task(tasks[name])
            self.measure_one(name, measure, service, progress, tasks[name])

    def measure_one(
        self, name: str, measure: Measure, service: Service, progress: Progress, task: TaskID
    ) -> None:
        def report(done_seconds: float, doing: str) -> None:
            # A last round may run over the time; the bar is full, and its clock stops, at the end only.
            progress.update(task, completed=min(done_seconds, 0.99 * bench.seconds), doing=doing)

        bench = self.bench(measure, name, service, report)
        progress.update(task, total=bench.seconds)
        began = time.monotonic()
        try:
            self.results[name] = result = self.measured(measure, bench)
            doing = f"{result.rounds} rounds"
        except MeasurementInvalid as error:
            self.failures[name], doing = str(error), "failed"
        except Exception:  # noqa: BLE001 - minutes of other measurements are worth keeping
            self.failures[name], doing = traceback.format_exc(), "failed"
        self.seconds[name] = round(time.monotonic() - began, 1)
        progress.update(task, total=1, completed=1, doing=doing)
        progress.stop_task(task)

    def measured(self, measure: Measure, bench: Bench) -> Result:
        """Without a peer that fails in the course of it, all of it is done again: the others are worth it."""
        left_out: dict[str, str] = {}
        while True:
            try:
                result = measure.run(bench)
            except MeasurementInvalid as error:
                if error.who is None or error.who.role != "peer":
                    raise
                left_out[error.who.label] = _in_short(error)
                others = [each for each in bench.contestants if each != error.who]
                another_folder = self.folder / f"{bench.folder.name}-again"
                bench = replace(bench, contestants=others, folder=another_folder)
            else:
                result.how = "\n".join((result.how.strip(), *self.notes_on(result.key)))
                result.left_out = left_out
                return result

    def notes_on(self, measure: str) -> list[str]:
        return textwrap.wrap(self.group.notes.get(measure, ""), 110)

    def bench(self, measure: Measure, name: str, service: Service, report: Reporter) -> Bench:
        contestants = measure.those_of(self.group.contestants)
        return Bench(
            self.group,
            contestants,
            self.folder / name,
            service,
            self.options.seconds_for(measure, len(contestants)),
            self.options.least_rounds(measure),
            self.options.smoke,
            report,
        )


def _in_short(error: MeasurementInvalid) -> str:
    """What it says in the end. How it came there names folders of this machine."""
    return str(error).strip().splitlines()[-1]
