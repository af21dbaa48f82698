"""Leaders that are killed or stopped: another one is elected, and observers see it."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from contract.engines import each_engine, fresh_namespace, fresh_url
from support import Process, run_python, wait_until

TTL_SECONDS = 2

CANDIDATE = """
import sys, holdfast
url, namespace, value, ttl = sys.argv[1:]
with holdfast.connect(url, namespace=namespace) as client:
    for term in client.election("x", value.encode(), ttl=float(ttl)).terms():
        print("elected", term.token, flush=True)
        for line in sys.stdin:
            try:
                term.check()
                print("leads", flush=True)
            except holdfast.LockLost:
                print("lost", flush=True)
                break
"""

ENGINES = [
    each for each in each_engine() if each.id in {"redis", "redlock", "zookeeper", "etcd", "postgresql"}
]


def candidate(url: str, namespace: str, value: str) -> Process:
    return run_python(CANDIDATE, url, namespace, value, str(TTL_SECONDS))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ENGINES)
def test_a_leader_that_is_killed_is_followed(scheme: str, tmp_path: Path) -> None:
    url = fresh_url(scheme, tmp_path).replace("session_timeout=3600", f"session_timeout={TTL_SECONDS}")
    namespace = fresh_namespace()
    with holdfast.connect(url, namespace=namespace) as client, candidate(url, namespace, "one") as first:
        election = client.election("x")
        token = int(first.expect("elected"))
        observer = election.observe()
        leader = next(observer)
        assert leader is not None
        assert (leader.value, leader.token) == (b"one", token)
        with candidate(url, namespace, "two") as second:
            if scheme != "redlock":  # which has no queue to look at
                wait_until(lambda: len(client.inspect(election.lock_name).waiters) == 1)
            first.kill()
            later = int(second.expect("elected"))
            assert later > token
            while leader is None or leader.token != later:
                leader = next(observer)
            assert leader.value == b"two"
            observer.close()


def test_a_leader_that_was_stopped_knows_it_when_it_goes_on(sqlite_url: str) -> None:
    with holdfast.connect(sqlite_url) as client, candidate(sqlite_url, "holdfast", "one") as first:
        token = int(first.expect("elected"))
        first.send("check")
        first.expect("leads")
        first.stop()
        with client.election("x", b"me").campaign(timeout=20) as leadership:
            assert leadership.token > token
            first.cont()
            first.send("check")
            first.expect("lost")
            leadership.check()
        assert int(first.expect("elected")) > leadership.token, "it campaigned again"
