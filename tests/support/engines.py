"""Which engines' tests run: all, or those that ``HOLDFAST_TEST_ENGINES`` names (``memory,sqlite,redis``).

A test belongs to an engine by its mark, ``@pytest.mark.engine("redis")`` (one of several is enough), or by
its folder, ``tests/engines/<folder>``. A test without an engine always runs. A missing server is a failure,
so nothing here looks for one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

from holdfast.engines import SCHEMES

__all__ = ["SCHEMES_BY_FOLDER", "chosen_schemes", "deselect_engines"]

VARIABLE: Final = "HOLDFAST_TEST_ENGINES"

SCHEMES_BY_FOLDER: Final[Mapping[str, tuple[str, ...]]] = {
    folder: tuple(scheme for scheme, place in SCHEMES.items() if place == folder)
    for folder in dict.fromkeys(SCHEMES.values())
}
"""The folder of an engine, in ``src/holdfast/engines`` and in ``tests/engines`` → the schemes of its URLs."""

ENGINE_TESTS: Final = Path(__file__).resolve().parent.parent / "engines"


def chosen_schemes() -> frozenset[str] | None:
    """What the variable names; None for all."""
    names = [name.strip() for name in os.environ.get(VARIABLE, "").split(",")]
    chosen = frozenset(filter(None, names))
    known = {scheme for schemes in SCHEMES_BY_FOLDER.values() for scheme in schemes}
    if unknown := sorted(chosen - known):
        raise pytest.UsageError(f"{VARIABLE} names {unknown}: it knows {sorted(known)}")
    return chosen or None


def deselect_engines(config: pytest.Config, items: list[pytest.Item]) -> None:
    """For ``pytest_collection_modifyitems``."""
    chosen = chosen_schemes()
    if chosen is None:
        return
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        engines = _engines_of(item)
        (kept if not engines or chosen.intersection(engines) else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def _engines_of(item: pytest.Item) -> Iterable[str]:
    marks = [scheme for mark in item.iter_markers("engine") for scheme in mark.args]
    if marks or not item.path.is_relative_to(ENGINE_TESTS):
        return marks
    folder = item.path.relative_to(ENGINE_TESTS).parts[0]
    return SCHEMES_BY_FOLDER.get(folder, (folder,))
