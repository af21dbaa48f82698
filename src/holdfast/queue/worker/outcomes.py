"""The outcome of a job after its function has ended. No I/O."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidArgument, StaleToken
from ..arguments import encoded
from ..calls import BaseJob
from ..model import JobCancelled

__all__ = ["Fail", "Finish", "Nothing", "Outcome", "Release", "of_error", "of_result"]


log = logging.getLogger("holdfast")


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is done. ``result`` is JSON text; None: there is no result."""

    result: str | None


@dataclass(frozen=True, slots=True)
class Fail:
    error: object
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Another worker is to run the job, and this attempt does not count."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """The job has another claimant now, or its function has ended it already."""


Outcome = Finish | Fail | Release | Nothing


def of_result(job: BaseJob, result: Any) -> Outcome:
    if job.is_ended or job.stop_reason == "lost":
        return Nothing()
    try:
        return Finish(None if result is None else encoded(result, "result"))
    except InvalidArgument as error:
        # The function has done its work, and another attempt would fail in the same way.
        return Fail(error, is_final=True)


def of_error(job: BaseJob, error: BaseException) -> Outcome:
    """The function of the job raised ``error``."""
    if job.stop_reason == "lost" or (isinstance(error, StaleToken) and error.resource == f"job {job.id}"):
        return Nothing()
    if isinstance(error, JobCancelled) or job.stop_reason == "cancelled":
        return Fail("cancelled while it ran")
    if job.stop_reason == "given back":
        return Release()
    log.warning("%r failed: %s: %s", job, type(error).__name__, error)
    own = error.__traceback__
    # The first frame is the worker's: it does not help to find the mistake.
    return Fail(error.with_traceback(own.tb_next if own is not None else None))
