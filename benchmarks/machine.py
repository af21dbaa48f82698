"""Where and on what a run was made. Nothing that names the machine, its user or its folders."""

from __future__ import annotations

import datetime
import os
import platform
import sqlite3
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .contestant import Contestant
from .service import Service

__all__ = ["describe", "processor_time", "stolen_since"]

ROOT = Path(__file__).resolve().parent.parent


def describe(contestants: Iterable[Contestant], service: Service, folder: Path) -> Mapping[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "sqlite": sqlite3.sqlite_version,
        "kernel": f"{platform.system()} {platform.release()}",
        "processor": processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 2),
        "file_system": file_system(folder),
        "servers": service.versions,
        "versions": {
            each.distribution: each.version for each in contestants if each.distribution is not None
        },
    }


def commit() -> str:
    """The commit measured, with a mark if the tree differs from it; "unknown" outside a repository."""
    name = _git("rev-parse", "--short=12", "HEAD")
    if not name:
        return "unknown"
    # Only what is measured counts: new results do not make the code another.
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks/*.py")
    return f"{name} with changes" if changed else name


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],  # noqa: S607 - whichever git the person has
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def file_system(folder: Path) -> str:
    """The type of the file system that the locks lie on."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return "unknown"
    types = [fields[fields.index("-") + 1] for fields in mounts if fields[2] == wanted]
    return types[0] if types else "unknown"


def processor_time() -> tuple[int, int]:
    """Of all processors since they were started: in all, and what others had on the host of a virtual machine
    while this one would have run. Nothing where the system does not tell."""
    try:
        fields = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    return (sum(fields), fields[7]) if len(fields) == 8 else (0, 0)


def stolen_since(before: tuple[int, int]) -> float:
    """The share of the time that was taken away since then."""
    whole, stolen = processor_time()
    return (stolen - before[1]) / (whole - before[0]) if whole > before[0] else 0.0
