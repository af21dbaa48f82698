"""Imports point downward only, and what must be pure imports nothing that is not.

    cli                                        the public API only, and lab
    lab                                        stands apart: servers, a proxy; the public API only
    actors                                     queue, the connections of events and sql; client and aio
    ownership                                  recipes; client and aio
    idempotency                                the HTTP of fencing
    lockorder, pytest_plugin                   the checker of lock order: protocols, facades
    doctor, provision, redlock                 what is asked of an engine beside locks: engines, facades
    client, aio, facades                       what users hold: recipes, drivers, engines and below
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

Beside these layers there are two sides, threads and asyncio. Neither imports the other: what both need is in
a module beside them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidy.source import PACKAGE, Import, imports_of, module_name, python_files, resolve, shown

GROUND = {"errors", "model"}
LOCKS = GROUND | {"rules", "core", "protocols"}
DATABASES = GROUND | {"core", "fencing", "sql"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": GROUND,
    "model": GROUND,
    "advice": GROUND,
    "rules": GROUND,
    "core": GROUND | {"rules"},
    "engine_api": GROUND | {"rules"},
    "runtime": GROUND | {"rules", "core", "engine_api"},
    "protocols": LOCKS,
    "drivers": LOCKS | {"runtime", "engine_api"},
    "engines": LOCKS | {"runtime", "engine_api"},
    "recipes": LOCKS,
    "client": LOCKS | {"recipes", "facades", "drivers", "runtime", "engine_api"},
    "aio": LOCKS | {"recipes", "facades", "drivers", "runtime", "engine_api"},
    "facades": LOCKS | {"recipes", "client", "aio", "drivers", "engines", "runtime", "engine_api"},
    "lockorder": {"protocols", "facades"},
    "pytest_plugin": {"lockorder"},
    "doctor": GROUND | {"core", "engines", "facades"},
    "provision": GROUND | {"core", "facades"},
    "redlock": GROUND | {"engines"},
    "fencing": GROUND | {"core"},
    "sql": DATABASES,
    "optimistic": DATABASES,
    "queue": DATABASES | {"runtime"},
    "events": DATABASES | {"runtime"},
    "idempotency": GROUND | {"core", "fencing"},
    "ownership": LOCKS | {"recipes", "client", "aio"},
    "actors": DATABASES | {"runtime", "queue", "events", "client", "aio"},
}
"""For each part, the parts it may use beside itself."""

ELSEWHERE = {"__init__", "__main__", "cli", "lab"}
"""What ``MAY_IMPORT`` leaves out: the package itself, and what lives on the public API (below)."""

THREADS = {"threads", "blocking", "client"}
ASYNCIO = {"asyncio", "aio"}
"""The names of modules and folders that belong to one side only."""

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


def test_every_part_has_its_layer() -> None:
    parts = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in python_files(PACKAGE)}
    assert parts - ELSEWHERE == set(MAY_IMPORT), "say in MAY_IMPORT what each part may use"


def is_other_side(module: str, used: Import) -> bool:
    """Whether code of threads imports code of asyncio, or the other way round."""
    own, other = set(module.split(".")), set(used.dotted.split("."))
    awaits = bool(other & ASYNCIO) or any(part.endswith("_asyncio") for part in other)
    return bool(own & THREADS and awaits) or bool(own & ASYNCIO and other & THREADS)


@pytest.mark.parametrize(
    ("module", "imported", "is_wrong"),
    [
        ("queue.aio", "queue.threads", True),
        ("facades.threads.cell", "aio", True),
        ("events.blocking", "events.connections_asyncio", True),
        ("events.connections_asyncio", "events.connections", False),
        ("facades.base", "client", False),
    ],
)
def test_the_other_side_is_known_by_its_names(module: str, imported: str, is_wrong: bool) -> None:
    used = Import(PACKAGE, 1, f"holdfast.{imported}", "Name")
    assert is_other_side(f"holdfast.{module}", used) is is_wrong


def test_threads_and_asyncio_do_not_know_each_other() -> None:
    wrong = [
        str(used)
        for path in python_files(PACKAGE)
        for used in imports_of(path)
        if used.module.split(".")[0] == "holdfast" and is_other_side(module_name(path), used)
    ]
    assert not wrong, "move what both need into a module beside them:\n" + "\n".join(wrong)


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
