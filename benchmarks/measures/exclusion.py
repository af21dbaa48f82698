"""Tasks that measurements share: taking, giving back, and proof that a contestant excludes at all."""

from __future__ import annotations

from pathlib import Path

from ..contestant import Contestant, check
from ..worker import Desk, Team, Worker

__all__ = ["give_back", "prove_exclusion", "take"]


def take(desk: Desk) -> None:
    desk.handle.acquire()


def give_back(desk: Desk) -> None:
    desk.handle.release()


def try_once(desk: Desk) -> bool:
    """Whether it could be had at once; it is given back."""
    had = desk.handle.try_acquire()
    if had:
        desk.handle.release()
    return had


def excludes_within_the_process(desk: Desk, contestant: Contestant, folder: Path) -> bool:
    other = contestant.open(folder, "resource")
    try:
        desk.handle.acquire()
        refused = not other.try_acquire()
        desk.handle.release()
        granted = other.try_acquire()
        if granted:
            other.release()
        return refused and granted
    finally:
        other.close()


def prove_exclusion(worker: Worker, contestant: Contestant, folder: Path) -> None:
    """Refused while another has it, granted afterwards: else the speed of ``contestant`` means nothing."""
    if not contestant.abilities & {"processes", "transactions"}:
        check(
            worker.call(excludes_within_the_process, contestant, folder),
            f"{contestant.label} does not exclude within its process",
        )
        return
    with Team() as team:
        other = team.hire(contestant, folder)
        worker.call(take)
        check(not other.call(try_once), f"{contestant.label} was had twice at once")
        worker.call(give_back)
        check(other.call(try_once), f"{contestant.label} could not be had after its release")
