"""What holds for every test. Engine fixtures live with the contract suite."""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from contract.engines import deselect_lacking
from support.engines import chosen_schemes, deselect_engines
from support.loops import left_open, watch_loops
from support.realtime import mark_realtime, time_refused, watch_audit_events
from support.thorough import deselect_combinations, examples

# Time limits per example measure the machine, not the code; a failure prints what reproduces it.
settings.register_profile(
    "holdfast",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=examples(100),
)
settings.load_profile("holdfast")

# Started by nohup or in the background of a script, we ignore what our children must not: they inherit it.
for _number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    chosen_schemes()  # a name that no engine has is refused before anything runs
    watch_loops()
    watch_audit_events()


def pytest_collection_finish() -> None:
    """Thousands of tests live as long as the run. Collecting garbage among them, again and again, would stop
    the process for longer than a short lease lasts."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    mark_realtime(items)
    deselect_engines(config, items)
    deselect_lacking(config, items)
    yield  # what the user chooses by `-k` and `-m`
    deselect_combinations(config, items)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with time_refused(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with time_refused(item):
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    with time_refused(item):
        return (yield)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a locks database of this test's own."""
    return f"sqlite:///{tmp_path}/locks.db"


@pytest.fixture(autouse=True)
def _own_embedded_engine(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """No test touches the locks database of the person who runs it: its default is in a folder of its own."""
    folder = tmp_path_factory.getbasetemp() / "default-locks"
    folder.mkdir(mode=0o700, exist_ok=True)
    # Names of parametrised tests can be long or hold slashes; their hash will do.
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{folder}/{abs(hash(request.node.nodeid)):x}.db")


@pytest.fixture(autouse=True)
def _no_connection_outlives_its_loop() -> Iterator[None]:
    yield
    assert not left_open()
