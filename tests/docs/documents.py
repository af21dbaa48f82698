"""Reading the documents: their code blocks, with the line each starts on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

NOT_RUN = "# not run:"
"""A block that starts so, with its reason, is compiled and not executed."""

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+|~~~+)(?P<language>[\w+-]*)[^`]*$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block. ``line`` is the first line of its code in the document."""

    path: Path
    line: int
    language: str
    code: str

    @property
    def reason_not_to_run(self) -> str | None:
        """The reason given for not executing it, "" if none was given, None if it is to be executed."""
        first = self.code.lstrip().partition("\n")[0]
        return first[len(NOT_RUN) :].strip() if first.startswith(NOT_RUN) else None

    @property
    def at_its_place(self) -> str:
        """The code with empty lines before it, so that a traceback names the line of the document."""
        return "\n" * (self.line - 1) + self.code

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT) if self.path.is_relative_to(ROOT) else self.path}:{self.line}"


def documents() -> list[Path]:
    return [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if path.is_file()]


def examples() -> list[Path]:
    return sorted((ROOT / "examples").glob("*.py"))


def blocks_of(path: Path) -> list[Block]:
    """Every fenced block of a document, in order. An unclosed fence is an error, not a short block."""
    blocks: list[Block] = []
    opening: re.Match[str] | None = None
    first_line = 0
    code: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = _FENCE.match(line)
        if opening is None:
            if match:
                opening, first_line, code = match, number + 1, []
        elif match and match["ticks"].startswith(opening["ticks"]) and not match["language"]:
            blocks.append(Block(path, first_line, opening["language"], "\n".join(code) + "\n"))
            opening = None
        else:
            code.append(line.removeprefix(opening["indent"]))
    if opening is not None:
        raise ValueError(f"{path}:{first_line - 1}: this code block is never closed")
    return blocks
