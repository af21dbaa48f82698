"""What becomes of a job when its function has ended. No I/O."""

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
    """It is done. The result is a text of JSON, or there is none."""

    result: str | None


@dataclass(frozen=True, slots=True)
class Fail:
    error: object
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Another worker is to begin it anew, and this try does not count."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """It is not this claimant's any more, or its function has said what becomes of it."""


Outcome = Finish | Fail | Release | Nothing


def of_result(job: BaseJob, result: Any) -> Outcome:
    if job.is_ended or job.stop_reason == "lost":
        return Nothing()
    try:
        return Finish(None if result is None else encoded(result, "result"))
    except InvalidArgument as error:
        # What it did is done: to do it again would end the same way.
        return Fail(error, is_final=True)


def of_error(job: BaseJob, error: BaseException) -> Outcome:
    """``error`` got out of its function."""
    if job.stop_reason == "lost" or (isinstance(error, StaleToken) and error.resource == f"job {job.id}"):
        return Nothing()
    if isinstance(error, JobCancelled) or job.stop_reason == "cancelled":
        return Fail("cancelled while it ran")
    if job.stop_reason == "given back":
        return Release()
    log.warning("%r failed: %s: %s", job, type(error).__name__, error)
    own = error.__traceback__
    # Its first frame is the worker's, which is of no interest to those who read it.
    return Fail(error.with_traceback(own.tb_next if own is not None else None))
