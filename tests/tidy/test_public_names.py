"""The public names are a contract: adding or losing one is a decision, made here."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import tomllib
import types

import pytest

import holdfast
from support import run_python
from tidy.source import PACKAGE, ROOT
from tidy.test_imports import PUBLIC_MODULES

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
EVENTS_NAMES = ["Event", "EventStore", "Projection", "Snapshot", "Subscription", "connect"]
SQL_NAMES = [
    "Backoff",
    "SqlAttempt",
    "create_idempotency_table",
    "idempotent",
    "prune_idempotency_table",
    "retry_transaction",
    "row_lock",
    "transaction_lock",
]
OPTIMISTIC_NAMES = [
    "Backoff",
    "Increment",
    "compare_and_update",
    "decrement_if_available",
    "optimistic",
    "update_where",
]
GUARD_NAMES = [
    "FencedEtcd",
    "FencedObject",
    "FencedRedis",
    "advance",
    "enforce",
    "fenced_update",
    "fenced_upsert",
    "install",
    "marks",
    "move",
    "newest",
    "protect_table",
    "prune",
    "transaction",
    "unprotect_table",
]
FENCING_NAMES = [
    *GUARD_NAMES,
    "AsyncFencedEtcd",
    "AsyncFencedObject",
    "AsyncFencedRedis",
    "EtcdCompare",
    "FencedFile",
    "FencedZooKeeper",
    "FencingMiddleware",
    "Grant",
    "WSGIFencingMiddleware",
    "ZooKeeperCheck",
    "etcd_compares",
    "fence_text",
    "fencing_headers",
    "httpx_auth",
    "parse_fence",
    "requests_auth",
    "zookeeper_check",
]
ADVICE_NAMES = [
    "Answer",
    "LEAVES",
    "Leaf",
    "QUESTIONS",
    "Question",
    "SYSTEMS",
    "System",
    "every_path",
    "walk",
]
PUBLIC = {
    "": NAMES,
    "actors": ACTORS_NAMES,
    "actors.aio": ACTORS_AIO_NAMES,
    "advice": ADVICE_NAMES,
    "aio": AIO_NAMES,
    "doctor": ["Finding", "examine"],
    "events": EVENTS_NAMES,
    "events.aio": ["AsyncEventStore", "AsyncProjection", "AsyncSubscription", "connect"],
    "fencing": FENCING_NAMES,
    "fencing.aio": GUARD_NAMES,
    "idempotency": ["IdempotencyMiddleware", "WSGIIdempotencyMiddleware"],
    "lockorder": LOCKORDER_NAMES,
    "optimistic": OPTIMISTIC_NAMES,
    "optimistic.aio": OPTIMISTIC_NAMES,
    "ownership": OWNERSHIP_NAMES,
    "ownership.aio": OWNERSHIP_AIO_NAMES,
    "provision": ["install", "script"],
    "queue": QUEUE_NAMES,
    "queue.aio": ["AsyncJob", "AsyncQueue", "AsyncWorker", "connect"],
    "redlock": REDLOCK_NAMES,
    "sql": SQL_NAMES,
    "sql.aio": SQL_NAMES,
}
"""What users import from where. ``errors`` and ``model`` are imported from ``holdfast`` itself."""


def module_of(name: str) -> types.ModuleType:
    return importlib.import_module(f"holdfast.{name}".removesuffix("."))


def test_the_names_of_every_public_module_are_pinned() -> None:
    assert {name for name in PUBLIC if name and "." not in name} == PUBLIC_MODULES - {
        "cli",
        "errors",
        "lab",
        "model",
    }
    awaited = {path.parent.name for path in PACKAGE.glob("*/aio.py")}
    assert {name.removesuffix(".aio") for name in PUBLIC if name.endswith(".aio")} == awaited


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_pinned(name: str) -> None:
    module, names = module_of(name), PUBLIC[name]
    assert sorted(module.__all__) == sorted(names)
    missing = [each for each in names if not hasattr(module, each)]
    assert not missing, f"{module.__name__}.__all__ names what is not there: {missing}"


@pytest.mark.parametrize("name", PUBLIC)
def test_nothing_public_is_missing_from_all(name: str) -> None:
    """A class or function of ours that shows without an underscore is public, said or not."""
    module = module_of(name)
    stray = [
        each
        for each, value in vars(module).items()
        if not each.startswith("_")
        and each not in module.__all__
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]
    assert not stray, f"add to {module.__name__}.__all__, or begin with an underscore: {stray}"


def test_every_public_class_and_function_says_what_it_is() -> None:
    silent = [
        f"{module.__name__}.{name}"
        for module in map(module_of, PUBLIC)
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
