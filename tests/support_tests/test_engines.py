"""``HOLDFAST_TEST_ENGINES`` chooses whose tests run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support import run_python
from support.engines import chosen_schemes

ROOT = Path(__file__).resolve().parent.parent.parent


def collected(engines: str | None, *paths: str) -> list[str]:
    arguments = ("--collect-only", "-q", "-p", "no:cacheprovider", *paths)
    with run_python(
        None, *arguments, module="pytest", env={"HOLDFAST_TEST_ENGINES": engines}, cwd=ROOT
    ) as run:
        return [line for line in run.succeed(60).splitlines() if "::" in line]


PATHS = (
    "tests/contract/test_values.py",
    "tests/engines/sqlite/test_database_file.py",
    "tests/support_tests/test_engines.py",
)


def test_only_the_engines_named_are_tested() -> None:
    everything = collected(None, *PATHS)
    assert {"memory", "sqlite"} <= set(re.findall(r"\[(\w+)-(?:threads|asyncio)", "\n".join(everything)))
    chosen = collected(" memory,", *PATHS)
    assert set(chosen) < set(everything)
    assert set(re.findall(r"\[(\w+)-(?:threads|asyncio)", "\n".join(chosen))) == {"memory"}
    assert not any("engines/sqlite" in line for line in chosen)
    assert any("support_tests" in line for line in chosen), "what belongs to no engine always runs"


@pytest.mark.parametrize(("text", "chosen"), [("", None), (" , ", None), ("redis, etcd", {"redis", "etcd"})])
def test_the_variable(monkeypatch: pytest.MonkeyPatch, text: str, chosen: set[str] | None) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_ENGINES", text)
    assert chosen_schemes() == chosen


def test_an_engine_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_ENGINES", "memory,rebis")
    with pytest.raises(pytest.UsageError, match="rebis"):
        chosen_schemes()
