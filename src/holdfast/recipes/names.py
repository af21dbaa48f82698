"""The names of the recipes' records. Each recipe has names of its own, which no lock of a user can have."""

from __future__ import annotations

from ..core import arguments

__all__ = ["JOBS", "cell", "job", "job_state"]

JOBS = "_holdfast/job:"
"""What the records of all jobs begin with."""


def cell(name: str) -> str:
    """The record that holds the value of a cell."""
    return f"_holdfast/cell:{arguments.check_name(name)}"


def job(name: str) -> str:
    """The lock that a run of a job holds."""
    return f"{JOBS}{arguments.check_name(name)}"


def job_state(name: str) -> str:
    """The cell that remembers a job's last run."""
    return f"_holdfast/job-state:{arguments.check_name(name)}"
