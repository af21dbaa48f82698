"""Imports point downward only, and what must be pure imports nothing that is not.

    cli                                        the public API only, and lab
    lab                                        stands apart: servers, a proxy; the public API only
    actors, ownership                          client, aio, queue and below
    pytest_plugin, lockorder                   the checker of lock order: protocols, facade
    idempotency                                client, aio, fencing (its HTTP) and below
    client, aio, facades, __init__             everything below
    recipes                                    protocols and below
    drivers     engines                        side by side, above all that follows; neither knows the other
    protocols                                  rules and core
    runtime                                    clocks, forks, pools, sockets: engine_api, core and below
    engine_api                                 what a driver needs of an engine: rules and below
    core                                       rules and below
    rules                                      pure
    queue, events                              sql, runtime and below: no lock client
    optimistic                                 sql and below
    sql                                        fencing (its connections) and below
    fencing                                    stands apart: errors, model, core
    advice                                     stands apart: data, and the errors
    errors, model                              the ground

A folder that does not exist yet is simply not checked yet.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidy.source import PACKAGE, Import, imports_of, module_name, python_files, resolve, shown

GROUND = {"errors", "model"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": GROUND,
    "model": GROUND,
    "rules": GROUND,
    "core": GROUND | {"rules"},
    "fencing": GROUND | {"core"},
    "advice": GROUND,
    "sql": GROUND | {"core", "fencing"},
    "optimistic": GROUND | {"core", "fencing", "sql"},
    "protocols": GROUND | {"rules", "core"},
    "runtime": GROUND | {"rules", "core", "engine_api"},
    "engine_api": GROUND | {"rules"},
    "drivers": GROUND | {"rules", "core", "protocols", "runtime", "engine_api"},
    "engines": GROUND | {"rules", "core", "protocols", "runtime", "engine_api"},
    "recipes": GROUND | {"rules", "core", "protocols"},
    "queue": GROUND | {"core", "fencing", "sql", "runtime"},
    "events": GROUND | {"core", "fencing", "sql", "runtime"},
}
"""For each part, the parts it may use beside itself."""

SHARED_PROTOCOLS = {"resp"}
"""Folders beside the engines that are no engine: protocol code that several engines speak."""

PUBLIC_MODULES = {
    *GROUND,
    "actors",
    "advice",
    "aio",
    "cli",
    "doctor",
    "events",
    "fencing",
    "idempotency",
    "lab",
    "lockorder",
    "optimistic",
    "ownership",
    "provision",
    "queue",
    "redlock",
    "sql",
}
"""What a user may import, and therefore the command line too."""

IMPURE = {
    "asyncio",
    "concurrent",
    "datetime",
    "multiprocessing",
    "os",
    "queue",
    "random",
    "sched",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "sqlite3",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
}
"""Clocks, chance, threads, I/O. Rules and protocols get these from a driver, as operations."""


def part_of(module: str) -> str:
    """``holdfast.rules.mutex`` belongs to ``rules``; the package itself to ``__init__``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def target_part(used: Import) -> str | None:
    """The part that an import reaches, or None for a module that is not ours."""
    if used.module.split(".")[0] != "holdfast":
        return None
    # `from . import rules` names the part; `from holdfast import connect` names the package.
    if used.module == "holdfast" and used.name is not None and exists(used.name):
        return used.name
    return part_of(used.module)


def exists(part: str) -> bool:
    return (PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").is_file()


def files_of(part: str) -> list[Path]:
    single = PACKAGE / f"{part}.py"
    return [single] if single.is_file() else python_files(PACKAGE / part)


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_imports_point_downward(part: str) -> None:
    allowed = MAY_IMPORT[part] | {part}
    wrong = [
        str(used)
        for path in files_of(part)
        for used in imports_of(path)
        if (target := target_part(used)) is not None and target not in allowed
    ]
    assert not wrong, f"{part} may use {sorted(allowed)} only:\n" + "\n".join(wrong)


def test_nothing_but_its_entry_points_imports_the_command_line() -> None:
    wrong = [
        str(used)
        for path in python_files(PACKAGE)
        if part_of(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
        not in {"cli", "__main__"}
        for used in imports_of(path)
        if target_part(used) == "cli"
    ]
    assert not wrong, "the library does not know its command line:\n" + "\n".join(wrong)


def test_the_library_does_not_know_its_lab() -> None:
    wrong = [
        str(used)
        for path in python_files(PACKAGE)
        if part_of(module_name(path)) not in {"cli", "lab"}
        for used in imports_of(path)
        if target_part(used) == "lab"
    ]
    assert not wrong, "the lab is for tests, benchmarks and the command line:\n" + "\n".join(wrong)


@pytest.mark.parametrize("part", ["cli", "lab"])
def test_the_command_line_and_the_lab_use_the_public_api_only(part: str) -> None:
    wrong = [str(used) for path in files_of(part) for used in imports_of(path) if not is_public(used)]
    assert not wrong, f"{part} lives on the public API, as users do:\n" + "\n".join(wrong)


def is_public(used: Import) -> bool:
    parts = used.dotted.split(".")
    if parts[0] != "holdfast" or len(parts) == 1 or parts[1] == "cli":
        return True
    if any(part.startswith("_") and not part.startswith("__") for part in parts):
        return False
    # A submodule must be a public one; any other name comes from the package, whose names are pinned.
    return parts[1] in PUBLIC_MODULES or not exists(parts[1])


@pytest.mark.parametrize("part", ["rules", "protocols"])
def test_pure_parts_import_nothing_impure(part: str) -> None:
    wrong = [
        str(used)
        for path in files_of(part)
        for used in imports_of(path)
        if used.module.split(".")[0] in IMPURE
    ]
    assert not wrong, (
        f"{part} reach no clock, chance, thread or I/O; await an operation and let the driver do it:\n"
        + "\n".join(wrong)
    )


def test_engines_stand_alone() -> None:
    engines = PACKAGE / "engines"
    wrong = []
    for path in python_files(engines):
        own = path.relative_to(engines).parts[0]
        if not (engines / own).is_dir():
            continue  # A module of all engines, such as their registry.
        for used in imports_of(path):
            parts = used.dotted.split(".")
            if parts[:2] != ["holdfast", "engines"] or len(parts) < 3 or not (engines / parts[2]).is_dir():
                continue
            if parts[2] != own and parts[2] not in SHARED_PROTOCOLS:
                wrong.append(str(used))
    assert not wrong, "an engine is one folder that knows no other engine:\n" + "\n".join(wrong)


def test_the_core_needs_the_standard_library_only() -> None:
    # Each of these has extras, imported when they are used.
    free = {"cli", "engines", "events", "fencing", "lab", "queue"}
    wrong = [
        str(used)
        for path in python_files(PACKAGE)
        if path.relative_to(PACKAGE).parts[0] not in free
        for used in imports_of(path)
        if used.module.split(".")[0] not in sys.stdlib_module_names | {"holdfast"}
    ]
    assert not wrong, "the core runs on the standard library alone:\n" + "\n".join(wrong)


def test_the_reader_of_imports_sees_what_it_should(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that saw nothing would let every rule above pass."""
    assert resolve("..core.effects", "holdfast.rules") == "holdfast.core.effects"
    assert resolve(".", "holdfast.rules") == "holdfast.rules"
    assert resolve("time", "holdfast.rules") == "time"
    package = tmp_path / "holdfast"
    (package / "rules").mkdir(parents=True)
    source = package / "rules" / "mutex.py"
    source.write_text(
        "from typing import TYPE_CHECKING\n"
        "import os.path as p\n"
        "from ..core import effects\n"
        "if TYPE_CHECKING:\n    import asyncio\nelse:\n    import select\n"
        "def f():\n    from importlib import import_module\n    import_module('.record', __package__)\n"
    )
    monkeypatch.setattr("tidy.source.PACKAGE", package)
    monkeypatch.setattr("tidy.source.ROOT", tmp_path)
    seen = {used.dotted for used in imports_of(source)}
    assert seen == {
        "typing.TYPE_CHECKING",
        "os.path",
        "holdfast.core.effects",
        "select",
        "importlib.import_module",
        "holdfast.rules.record",
    }
    assert shown(source, 3) == "holdfast/rules/mutex.py:3"
