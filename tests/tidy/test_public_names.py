"""The public names are a contract: adding or losing one is a decision, made here."""

from __future__ import annotations

import importlib.metadata
import inspect
import tomllib
import types

import pytest

import holdfast
import holdfast.actors
import holdfast.actors.aio
import holdfast.aio
import holdfast.lockorder
import holdfast.ownership
import holdfast.ownership.aio
import holdfast.queue
import holdfast.redlock
from support import run_python
from tidy.source import PACKAGE, ROOT

NAMES = [
    "BrokenBarrierError",
    "Client",
    "Conflict",
    "Deadlock",
    "EngineUnavailable",
    "Fence",
    "Guarantees",
    "HolderInfo",
    "HoldfastError",
    "InvalidArgument",
    "Leader",
    "Lease",
    "Lock",
    "LockInfo",
    "LockLost",
    "LockTimeout",
    "NotHeld",
    "RLock",
    "RWLock",
    "ReplayedError",
    "Semaphore",
    "StaleToken",
    "UNSET",
    "Unsupported",
    "WaitEdge",
    "WaiterInfo",
    "Watch",
    "__version__",
    "connect",
]
ACTORS_NAMES = ["Context", "DeadLetter", "MessageFailed", "Rejected", "System", "context", "script"]
ACTORS_AIO_NAMES = [
    "AsyncSystem",
    "Context",
    "DeadLetter",
    "MessageFailed",
    "Rejected",
    "System",
    "context",
]
AIO_NAMES = [
    "AsyncClient",
    "AsyncLease",
    "AsyncLock",
    "AsyncRLock",
    "AsyncRWLock",
    "AsyncSemaphore",
    "AsyncWatch",
    "connect",
]
LOCKORDER_NAMES = ["LockOrderWarning", "watch"]
QUEUE_NAMES = [
    "Backoff",
    "Job",
    "JobCancelled",
    "JobInfo",
    "KindInfo",
    "NewJob",
    "PeriodicInfo",
    "Queue",
    "State",
    "Worker",
    "connect",
    "script",
]
OWNERSHIP_NAMES = [
    "GroupInfo",
    "Member",
    "MemberInfo",
    "Owner",
    "groups",
    "join",
    "owner_of",
    "partition_of",
    "show",
]
OWNERSHIP_AIO_NAMES = ["AsyncMember" if name == "Member" else name for name in OWNERSHIP_NAMES]
REDLOCK_NAMES = ["NodeStatus", "initialise", "rejoin", "status"]


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (holdfast, NAMES),
        (holdfast.actors, ACTORS_NAMES),
        (holdfast.actors.aio, ACTORS_AIO_NAMES),
        (holdfast.aio, AIO_NAMES),
        (holdfast.lockorder, LOCKORDER_NAMES),
        (holdfast.queue, QUEUE_NAMES),
        (holdfast.redlock, REDLOCK_NAMES),
        (holdfast.ownership, OWNERSHIP_NAMES),
        (holdfast.ownership.aio, OWNERSHIP_AIO_NAMES),
    ],
)
def test_public_names_are_pinned(module: types.ModuleType, names: list[str]) -> None:
    assert sorted(module.__all__) == sorted(names)
    missing = [name for name in names if not hasattr(module, name)]
    assert not missing, f"{module.__name__}.__all__ names what is not there: {missing}"


@pytest.mark.parametrize(
    "module",
    [
        holdfast,
        holdfast.actors,
        holdfast.aio,
        holdfast.lockorder,
        holdfast.ownership,
        holdfast.ownership.aio,
        holdfast.queue,
        holdfast.redlock,
    ],
)
def test_nothing_public_is_missing_from_all(module: types.ModuleType) -> None:
    """A class or function of ours that shows without an underscore is public, said or not."""
    stray = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and name not in module.__all__
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]
    assert not stray, f"add to {module.__name__}.__all__, or begin with an underscore: {stray}"


def test_every_public_class_and_function_says_what_it_is() -> None:
    silent = [
        f"{module.__name__}.{name}"
        for module in (holdfast, holdfast.aio, holdfast.lockorder, holdfast.redlock)
        for name in module.__all__
        if (inspect.isclass(value := getattr(module, name)) or inspect.isfunction(value))
        and not inspect.getdoc(value)
    ]
    assert not silent, f"no docstring: {silent}"


def test_one_version() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert holdfast.__version__ == declared == importlib.metadata.version("holdfast")


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


@pytest.mark.realtime
def test_importing_needs_no_other_package() -> None:
    """Without site-packages, as on a machine where nothing else is installed."""
    code = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import holdfast, holdfast.aio
        with holdfast.connect("memory://") as locks, locks.lock("x") as lease:
            print("token", lease.token)
    """
    with run_python(code, str(PACKAGE.parent), options=("-I", "-S")) as child:
        child.expect("token")
        child.succeed()


@pytest.mark.realtime
def test_threads_never_import_asyncio() -> None:
    """It costs a command line twenty milliseconds, and nothing there uses it."""
    code = """
        import sys, holdfast
        with holdfast.connect() as locks, locks.lock("x") as lease:
            print("asyncio" in sys.modules)
    """
    with run_python(code) as child:
        child.expect("False")
