"""Tasks that measurements share: taking, giving back, and proof that a contestant excludes at all."""

from __future__ import annotations

from ..contestant import Contestant, Place, check
from ..worker import TaskContext, Team

__all__ = ["give_back", "prove_exclusion", "take"]


def take(context: TaskContext) -> None:
    context.handle.acquire()


def give_back(context: TaskContext) -> None:
    context.handle.release()


def try_once(context: TaskContext) -> bool:
    """Whether it could be had at once; it is given back."""
    had = context.handle.try_acquire()
    if had:
        context.handle.release()
    return had


def excludes_within_the_process(context: TaskContext, contestant: Contestant, place: Place) -> bool:
    other = contestant.open(place, "resource")
    try:
        context.handle.acquire()
        refused = not other.try_acquire()
        context.handle.release()
        granted = other.try_acquire()
        if granted:
            other.release()
        return refused and granted
    finally:
        other.close()


def prove_exclusion(contestant: Contestant, place: Place) -> None:
    """Refused while another has it, granted afterwards: else the speed of ``contestant`` means nothing."""
    with Team() as team:
        worker = team.hire(contestant, place)
        if not contestant.abilities & {"processes", "transactions"}:
            excludes = worker.call(excludes_within_the_process, contestant, place)
            check(excludes, "does not exclude within its process", contestant)
            return
        other = team.hire(contestant, place)
        team.ready()  # each tries it when it opens
        worker.call(take)
        check(not other.call(try_once), "was had twice at once", contestant)
        worker.call(give_back)
        check(other.call(try_once), "could not be had after its release", contestant)
