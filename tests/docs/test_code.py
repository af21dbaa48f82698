"""The code in the documents runs, and so do the examples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from docs.documents import ROOT, Block, blocks_of, documents, examples
from support import run_python

RUN_BLOCKS = """
import json, sys
path, blocks = sys.argv[1], json.loads(sys.argv[2])
names = {"__name__": "__main__", "__builtins__": __builtins__}
for code in blocks:
    exec(compile(code, path, "exec"), names)
print("every block ran")
"""
"""The blocks of one document share their names, as a reader who types them in order would."""

TIMEOUT_SECONDS = 100.0

ENGINES_OF = {
    "lab.md": ("redis",),
    "redis.md": ("redis",),
    "redlock.md": ("redlock",),
    "etcd.md": ("etcd",),
    "zookeeper.md": ("zookeeper",),
    "fencing-key-value.md": ("redis", "etcd", "zookeeper"),
}


def python_blocks(path: Path) -> list[Block]:
    return [block for block in blocks_of(path) if block.language in {"python", "py", "python3"}]


def run_document(path: Path, folder: Path) -> str:
    """Run a document's blocks in order, in a fresh process and an empty folder."""
    code = [block.at_its_place for block in python_blocks(path) if block.reason_not_to_run is None]
    home = folder / "home"
    home.mkdir()
    environment = {
        "HOLDFAST_URL": f"sqlite:///{folder}/locks.db",
        "HOME": str(home),
        "XDG_CONFIG_HOME": None,
        "XDG_DATA_HOME": None,
        "XDG_STATE_HOME": None,
    }
    with run_python(RUN_BLOCKS, str(path), json.dumps(code), env=environment, cwd=home) as child:
        child.close_stdin()
        return child.succeed(TIMEOUT_SECONDS)


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_python_block_compiles(path: Path) -> None:
    for block in python_blocks(path):
        compile(block.at_its_place, str(path), "exec", dont_inherit=True)
        assert block.reason_not_to_run != "", f"{block}: say why it is not run: `# not run: <reason>`"


def with_their_engines() -> list[ParameterSet]:
    """The documents, each marked with the engines whose servers its code starts."""
    marks = {name: [pytest.mark.engine(*engines)] for name, engines in ENGINES_OF.items()}
    return [pytest.param(path, marks=marks.get(path.name, [])) for path in documents()]


@pytest.mark.realtime
@pytest.mark.parametrize("path", with_their_engines(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_python_block_runs(path: Path, tmp_path: Path) -> None:
    run_document(path, tmp_path)


@pytest.mark.realtime
@pytest.mark.parametrize("path", examples(), ids=lambda path: path.name)
def test_every_example_runs(path: Path, tmp_path: Path) -> None:
    environment = {"HOLDFAST_URL": f"sqlite:///{tmp_path}/locks.db"}
    with run_python(script=path, env=environment, cwd=tmp_path) as child:
        child.close_stdin()
        child.succeed(TIMEOUT_SECONDS)


# The runner itself


def document(folder: Path, *lines: str) -> Path:
    path = folder / "page.md"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.realtime
def test_blocks_share_their_names_and_unrun_ones_are_left_out(tmp_path: Path) -> None:
    path = document(
        tmp_path,
        "```python",
        "x = 1",
        "```",
        "- in a list:",
        "  ```python",
        "  x += 1",
        "  ```",
        "```python",
        "# not run: needs a server",
        "raise SystemExit('ran')",
        "```",
        "```python",
        "print('x is', x)",
        "```",
        "```json",
        "{}",
        "```",
    )
    assert run_document(path, tmp_path) == "x is 2\nevery block ran\n"


@pytest.mark.realtime
def test_a_failing_block_names_its_line_in_the_document(tmp_path: Path) -> None:
    path = document(tmp_path, "# Title", "", "```python", "ok = 1", "1 / 0", "```")
    with pytest.raises(AssertionError, match=r"(?s)page\.md\", line 5.*ZeroDivisionError"):
        run_document(path, tmp_path)


def test_an_unclosed_block_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page\.md:1: .* never closed"):
        blocks_of(document(tmp_path, "```python", "x = 1"))


def test_a_fence_inside_a_longer_fence_is_text(tmp_path: Path) -> None:
    (block,) = blocks_of(document(tmp_path, "````markdown", "```python", "x", "```", "````"))
    assert block.language == "markdown"
    assert block.code == "```python\nx\n```\n"


def test_not_running_needs_a_reason(tmp_path: Path) -> None:
    (block,) = blocks_of(document(tmp_path, "```python", "# not run:", "x", "```"))
    assert block.reason_not_to_run == ""
