"""What every file of the project keeps to."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tidy.source import PACKAGE, parse, project_files, python_files, shown

FOLDERS_OF_ONE_MACHINE = ("work", "root", "Users", "home/[a-z]")
"""Spelled apart here, so that this file keeps its own rule."""

UNFINISHED = ("TO" + "DO", "FIX" + "ME", "X" * 3)

PATTERNS = {
    "a path of one machine; use tmp_path, or a path relative to the file": re.compile(
        r"(?<![\w.~}/-])/(?:" + "|".join(FOLDERS_OF_ONE_MACHINE) + r")/"
    ),
    "unfinished; open an issue, or finish it": re.compile(r"\b(?:" + "|".join(UNFINISHED) + r")\b"),
    "trailing space": re.compile(r"[ \t]+$"),
    "a carriage return": re.compile(r"\r"),
}

EXCEPTION_WITHOUT_REASON = re.compile(
    r"#\s*noqa(?::\s*[A-Z]+[0-9]+(?:\s*,\s*[A-Z]+[0-9]+)*)?\s*$"
    r"|#\s*type:\s*ignore(?:\[[\w\-, ]*\])?\s*$"
    r"|#\s*pragma: no cover\s*$"
)


def text_of(path: Path) -> str | None:
    """The text, or None for a file that is not text."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return None


@pytest.mark.parametrize("complaint", PATTERNS)
def test_lines(complaint: str) -> None:
    found = [
        f"{shown(path, number)}: {line.strip()}"
        for path in project_files()
        if path.name != "LICENSE" and (text := text_of(path)) is not None
        for number, line in enumerate(text.split("\n"), start=1)
        if PATTERNS[complaint].search(line)
    ]
    assert not found, complaint + "\n" + "\n".join(found)


def test_files_end_with_one_newline() -> None:
    wrong = [
        shown(path)
        for path in project_files()
        if (text := text_of(path)) and (not text.endswith("\n") or text.endswith("\n\n"))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_module_says_at_its_top_what_lives_there() -> None:
    silent = [
        shown(path)
        for path in python_files(PACKAGE)
        if path.read_text().strip() and ast.get_docstring(parse(path)) is None
    ]
    assert not silent, "no docstring at the top:\n" + "\n".join(silent)


def test_every_exception_to_a_check_carries_its_reason() -> None:
    bare = [
        f"{shown(path, number)}: {line.strip()}"
        for path in project_files()
        if path.suffix == ".py"
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if EXCEPTION_WITHOUT_REASON.search(line)
    ]
    assert not bare, (
        "write why: `# noqa: S608 - the name is our own`, `# type: ignore[arg-type]  # why`\n"
        + "\n".join(bare)
    )


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("path = '" + "/wo" + "rk/main/x'", "machine"),
        ("see " + "/ro" + "ot/.config", "machine"),
        ("sqlite:///tmp/x.db", None),
        ("https://example.org" + "/wo" + "rk/", None),
        ("# TO" + "DO: later", "unfinished"),
        ("todo = []", None),
        ("x = 1 ", "trailing"),
    ],
)
def test_each_pattern_sees_what_it_should(line: str, complaint: str | None) -> None:
    found = [name for name, pattern in PATTERNS.items() if pattern.search(line)]
    assert len(found) == (complaint is not None)
    assert not complaint or complaint in found[0]
