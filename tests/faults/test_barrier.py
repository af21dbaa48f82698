"""A party of a barrier that is killed: the others learn it from the engine."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import holdfast
from contract.engines import FRESH_URL, fresh_namespace
from holdfast import BrokenBarrierError
from support import run_python, wait_until

PARTY = """
import sys
import holdfast
locks = holdfast.connect(sys.argv[1], namespace=sys.argv[2])
print("waits", flush=True)
locks.barrier("x", 3, ttl=1).wait()
"""


@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param(each, marks=pytest.mark.engine(each))
        for each in ("sqlite", "redis", "postgresql+advisory")
    ],
)
def test_a_killed_party_breaks_the_barrier(scheme: str, tmp_path: Path) -> None:
    url, namespace = FRESH_URL[scheme](tmp_path), fresh_namespace()
    broken: list[BrokenBarrierError] = []

    def wait() -> None:
        try:
            barrier.wait(60)
        except BrokenBarrierError as error:
            broken.append(error)

    with (
        holdfast.connect(url, namespace=namespace) as locks,
        run_python(PARTY, url, namespace) as child,
    ):
        barrier = locks.barrier("x", 3, ttl=1)
        child.expect("waits")
        wait_until(lambda: barrier.n_waiting() == 1)
        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: barrier.n_waiting() == 2)
        child.kill()
        thread.join(20)
        assert "died" in str(broken[0])
        assert barrier.broken()
        barrier.reset()
        assert not barrier.broken()
