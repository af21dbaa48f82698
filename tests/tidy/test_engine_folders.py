"""Every engine folder has the same skeleton: the same kind of file under the same name."""

from __future__ import annotations

from typing import Final

import pytest

from tidy.source import PACKAGE, python_files

ENGINES: Final = PACKAGE / "engines"

SKELETON: Final = (
    "__init__.py",  # the Engine: URL, options, guarantees
    "config.py",  # URL options, parsed and checked
    "guarantees.py",
    "errors.py",  # sorts failures into NotApplied, OutcomeUnknown and EngineUnavailable
    "keys.py",  # names → keys
    "codec.py",  # bytes ↔ values
    "connection.py",
    "connection_asyncio.py",
    "handshake.py",
    "pool.py",
    "notifications.py",
    "store.py",
    "threads.py",
    "asyncio.py",
    "live_client.py",  # the settings of a live client that is given instead of a URL
    "diagnosis.py",  # holdfast doctor
    "admin.py",
    "topology.py",
    "routing.py",
    "scripts.py",  # loads scripts/ or sql/
)
"""The allowed file names of every engine folder; each has only those that apply."""

OWN: Final[dict[str, tuple[str, ...]]] = {
    "etcd": ("http2.py", "retention.py", "rpc.py", "txn.py", "wire_pb2.py"),
    "memory": (),
    "postgres": ("statements.py",),
    "postgres/advisory": (
        "acquisition.py",
        "effects.py",
        "lease_operations.py",
        "session.py",
        "statements.py",
    ),
    "redis": ("pubsub.py", "renewal.py"),
    "redlock": ("connector.py", "hinted_handoff.py", "rpc.py"),
    "resp": (),
    "sqlite": (
        "cache.py",
        "clients.py",
        "database_file.py",
        "janitor.py",
        "liveness.py",
        "records.py",
        "renewal.py",
        "session.py",
        "shortcuts.py",
        "side_directory.py",
        "sockets.py",
        "updates.py",
    ),
    "zookeeper": ("acquisition.py", "cache.py", "effects.py", "records.py", "session.py"),
}
"""Engine folder → the files for topics that the skeleton does not have."""

NAMES_MAX: Final = 44
"""How many distinct file names all engine folders have together, at most."""


def engine_folders() -> dict[str, set[str]]:
    """The names of the modules in each folder of an engine: ``redis``, ``postgres/advisory``."""
    folders: dict[str, set[str]] = {}
    for path in python_files(ENGINES):
        if path.parent != ENGINES:
            folders.setdefault(path.parent.relative_to(ENGINES).as_posix(), set()).add(path.name)
    return folders


def has_skeleton(folder: str) -> bool:
    """Whether the engine has taken the skeleton; one that has none yet is not held to it."""
    return "config.py" in engine_folders()[folder.partition("/")[0]] or folder == "memory"


@pytest.mark.parametrize("folder", sorted(engine_folders()))
def test_an_engine_folder_keeps_to_the_skeleton(folder: str) -> None:
    stray = engine_folders()[folder] - {*SKELETON, *OWN.get(folder, ())}
    assert not stray or not has_skeleton(folder), (
        f"engines/{folder} has {', '.join(sorted(stray))}: take a name of SKELETON, or add a new topic to OWN"
    )


def test_engine_folders_share_their_file_names() -> None:
    names = set().union(*engine_folders().values())
    assert len(names) <= NAMES_MAX, (
        f"there are {len(names)} distinct names: reuse one of {', '.join(SKELETON)}"
    )
