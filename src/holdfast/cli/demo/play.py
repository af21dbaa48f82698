"""One performance: starts the processes, plays the scenes one after the other, and cleans up."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import holdfast
from holdfast import LockInfo

from ..exits import complain
from ..processes import clock
from ..signals import Inbox
from .data import locks_url
from .outcome import Check, DemoFailed, Outcome
from .stages import Stage
from .troupe import Report, Troupe

__all__ = ["Performance", "Play", "perform"]

STATE_AFTER = {
    "waiting": "waits",
    "granted": "HOLDS",
    "lost": "waits",
    "finished": "done",
}
"""What the display shows of a worker after each report."""
DISTINCTIONS = {"ran": "RAN IT", "bought": "BOUGHT"}
"""What the display shows of the one worker that did the job."""
QUEUE_PATIENCE_SECONDS = 40.0


@dataclass(slots=True)
class Performance:
    """The result of a performance."""

    processes: int = 0
    start_seconds: float = 0.0
    seconds: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return bool(self.outcomes) and all(outcome.right for outcome in self.outcomes)


class Play:
    """The means of a scene."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self.stage = stage
        self.folder = folder
        self.troupe = Troupe(folder, self._on_report)
        self._doing: dict[int, str] = {}
        self._role = "worker"

    def cast(self, size: int, role: str) -> list[int]:
        """Set the workers of the next scene, and their role."""
        self.troupe.forget()
        self._role = role
        workers = list(range(1, size + 1))
        self._doing = dict.fromkeys(workers, "idle")
        self._draw()
        return workers

    def name(self, worker: int) -> str:
        return f"{self._role} {worker}"

    def mark(self, worker: int, state: str) -> None:
        self._doing[worker] = state
        self._draw()

    def pause(self, seconds: float) -> None:
        """Give people time to read, while the workers go on."""
        ends_at = clock() + seconds * self.stage.pace
        while (left := ends_at - clock()) > 0:
            self.troupe.listen(left)

    def wait_for_queue(self, locks: holdfast.Client, name: str, length: int) -> LockInfo:
        """Wait until this many workers wait for a name."""
        ends_at = clock() + QUEUE_PATIENCE_SECONDS
        with locks.watch(name) as changes:
            while (left := ends_at - clock()) > 0:
                info = changes.next(timeout=min(left, 1.0))
                self.troupe.listen(0)  # Raises if the worker that should queue has failed.
                if info is not None and len(info.waiters) >= length:
                    return info
        raise DemoFailed(f"{length} workers should wait for {name!r}")

    def _on_report(self, report: Report) -> None:
        if report.worker in self._doing:
            state = STATE_AFTER.get(report.kind, self._doing[report.worker])
            distinctions = (seen for fact, seen in DISTINCTIONS.items() if report.details.get(fact))
            self.mark(report.worker, next(distinctions, state))

    def _draw(self) -> None:
        self.stage.show({f"{self._role} {worker:>2}": state for worker, state in self._doing.items()})


def perform(numbers: Sequence[int], stage: Stage) -> Performance:
    """Play these scenes in a temporary folder. A signal ends it with ``Interrupted``, after the clean-up."""
    from .scenes import SCENES

    scenes = [(number, SCENES[number]) for number in sorted(set(numbers))]
    performance = Performance(processes=max(scene.size for _, scene in scenes))
    began = clock()
    with Inbox() as inbox, tempfile.TemporaryDirectory(prefix="holdfast-demo-") as name:
        play = Play(stage, Path(name))
        with play.troupe, inbox.waiting():
            # Creates the locks database, and loads the engine before the workers are forked.
            with holdfast.connect(locks_url(play.folder)) as locks:
                locks.list()
            play.cast(performance.processes, "process")
            play.troupe.start(performance.processes)
            performance.start_seconds = clock() - began
            stage.say(f"{performance.processes} processes started in {performance.start_seconds:.1f} s")
            with holdfast.connect(locks_url(play.folder)) as locks:
                for number, scene in scenes:
                    stage.announce(f"{number}. {scene.title}", scene.story)
                    try:
                        checks, figures = scene.play(play, locks)
                    except DemoFailed as failure:
                        complain(f"{failure}{failure.details}")
                        checks, figures = (Check("the scene is played to its end", str(failure), False),), {}
                    performance.outcomes.append(Outcome(number, scene.title, checks, figures))
                    if not performance.right:
                        break  # The workers may be in any state.
                    play.pause(0.5)
    performance.seconds = clock() - began
    return performance
