"""Writing what was measured: a folder for each group, and a page in front of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import plots, tables, targets
from .engines import GROUPS
from .figures import FIGURES
from .running import GroupRun

__all__ = ["write", "write_index"]

JSON = "results.json"
PAGE = "README.md"


def write(folder: Path, run: GroupRun) -> list[targets.Outcome]:
    """JSON, tables and plots of one group; whether it reached its figures."""
    outcomes = targets.compare(FIGURES.get(run.name, ()), run.results)
    failures = {name: _in_short(text) for name, text in run.failures.items()}
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "title": run.group.title,
        "machine": run.facts,
        "smoke": run.options.smoke,
        "seconds": run.seconds,
        "targets": [outcome.as_json() for outcome in outcomes],
        "measures": {name: result.as_json() for name, result in run.results.items()},
        "failures": failures,
        "left_out": run.left_out,
    }
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    (folder / JSON).write_text(text + "\n")
    (folder / PAGE).write_text(
        tables.report(run.group.title, run.facts, run.results, failures, run.left_out, outcomes)
    )
    if plots.can_draw():
        for result in run.results.values():
            plots.draw(result, folder, run.group.title)
    return outcomes


def _in_short(failure: str) -> str:
    """Whose it was and what it was: where in whose files is for the terminal."""
    lines = [line.rstrip() for line in failure.splitlines() if line.strip()]
    return "\n".join(lines[:1] + lines[1:][-1:])


def write_index(folder: Path) -> None:
    """Of all groups that are there, whenever they were measured."""
    found: dict[str, Any] = {
        name: json.loads((folder / name / JSON).read_text())
        for name in GROUPS
        if (folder / name / JSON).exists()
    }
    (folder / PAGE).write_text(tables.index(found))
