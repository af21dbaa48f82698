"""A cache entry runs out while sixteen requests want it: one computes it, the others take what it found.

Without the job every request would compute it at the same time, and the database would be at its slowest (a
cache stampede).

    python examples/cache_warming.py
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time

import holdfast

REQUESTS = 16
FRESH_SECONDS = 60

computed: list[str] = []
"""By which thread. Everything else is what a service has: a cache, here a dictionary, and a slow report."""

cache: dict[str, tuple[float, str]] = {}


def compute_report() -> str:
    computed.append(threading.current_thread().name)
    time.sleep(0.2)
    return "the report"


def report(locks: holdfast.Client) -> str:
    """What each request wants."""
    fresh_until, text = cache.get("report", (0.0, ""))
    if time.time() < fresh_until:
        return text
    # timeout: wait for the one that computes it. at_least: it then stays fresh, and nobody computes it again.
    with locks.job("warm/report", at_least=FRESH_SECONDS, timeout=30) as run:
        if run is not None:
            cache["report"] = (time.time() + FRESH_SECONDS, compute_report())
    return cache["report"][1]


def main() -> int:
    answers: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-example-") as folder,
        holdfast.connect(f"sqlite:///{folder}/locks.db") as locks,
    ):
        requests = [threading.Thread(target=lambda: answers.append(report(locks))) for _ in range(REQUESTS)]
        for request in requests:
            request.start()
        for request in requests:
            request.join()
    print(f"{len(answers)} requests answered, computed {len(computed)} times")
    return 0 if answers == ["the report"] * REQUESTS and len(computed) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
