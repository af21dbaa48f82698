"""Reading the project's own source: which files there are, and what a module imports and calls.

Only parsing happens here; the rules themselves are in the test files beside this one.
"""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "src" / "holdfast"
TESTS = ROOT / "tests"


@functools.cache
def project_files() -> tuple[Path, ...]:
    """Every file that is, or would be, part of the project: tracked, or new and not ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        names = listing.stdout.decode().split("\0")
        return tuple(path for name in sorted(set(names)) if name and (path := ROOT / name).is_file())
    # An unpacked source distribution has no repository: what lies in the folders is the project.
    folders = ("src", "tests", "docs", "examples", "tools")
    return tuple(path for name in folders for path in sorted((ROOT / name).rglob("*")) if path.is_file())


project_files()  # asked of git now: it is a process, and no test may start one here


def python_files(folder: Path) -> list[Path]:
    return [path for path in project_files() if path.suffix == ".py" and path.is_relative_to(folder)]


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def shown(path: Path, line: int | None = None) -> str:
    """The place as editors understand it: ``src/holdfast/client.py:12``."""
    place = path.relative_to(ROOT).as_posix()
    return place if line is None else f"{place}:{line}"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module. ``name`` is what was taken from it, or None for the module itself."""

    path: Path
    line: int
    module: str
    name: str | None

    @property
    def dotted(self) -> str:
        return self.module if self.name is None else f"{self.module}.{self.name}"

    def __str__(self) -> str:
        return f"{shown(self.path, self.line)}: imports {self.dotted}"


def module_name(path: Path) -> str:
    """``src/holdfast/rules/mutex.py`` is ``holdfast.rules.mutex``."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[Import]:
    """What this module imports when it runs. Imports for type checkers alone are left out.

    ``importlib.import_module`` with a literal name counts, wherever it stands.
    """
    module = module_name(path)
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    yield from _imports_in(parse(path), path, package)


def _imports_in(node: ast.AST, path: Path, package: str) -> Iterator[Import]:
    if isinstance(node, ast.If) and _is_type_checking(node.test):
        for statement in node.orelse:
            yield from _imports_in(statement, path, package)
        return
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(path, node.lineno, alias.name, None)
    elif isinstance(node, ast.ImportFrom):
        base = resolve("." * node.level + (node.module or ""), package)
        for alias in node.names:
            yield Import(path, node.lineno, base, alias.name)
    elif isinstance(node, ast.Call) and _is_import_module(node) and node.args:
        target = node.args[0]
        if isinstance(target, ast.Constant) and isinstance(target.value, str):
            yield Import(path, node.lineno, resolve(target.value, package), None)
    for child in ast.iter_child_nodes(node):
        yield from _imports_in(child, path, package)


def resolve(name: str, package: str) -> str:
    """The absolute name of a perhaps relative one: ``..core.ops`` in ``holdfast.rules``."""
    level = len(name) - len(name.lstrip("."))
    if level == 0:
        return name
    parts = package.split(".")
    base = parts[: len(parts) - (level - 1)]
    return ".".join([*base, *filter(None, [name[level:]])])


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _is_import_module(call: ast.Call) -> bool:
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in {"import_module", "__import__"}


@dataclass(frozen=True, slots=True)
class Call:
    """One call, with its callee's full dotted name as far as the imports tell it."""

    path: Path
    node: ast.Call
    function: str

    def __str__(self) -> str:
        return f"{shown(self.path, self.node.lineno)}: {self.function}("


def calls_of(path: Path) -> Iterator[Call]:
    """Every call. ``from time import sleep as nap; nap(1)`` is a call of ``time.sleep``."""
    aliases = _aliases_of(parse(path))
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Call):
            yield Call(path, node, dotted_name(node.func, aliases))


def _aliases_of(tree: ast.Module) -> dict[str, str]:
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return aliases


def dotted_name(node: ast.expr, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted_name(node.value, aliases)}.{node.attr}"
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    return "…"
