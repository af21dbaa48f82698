"""Cron on twenty servers, one job: each firing runs once, whichever server comes first.

Twenty processes are the servers. The clocks of some are ahead, of others behind, so their crons fire one
after the other. One of them runs the job; the others find that it has run. Then the server that runs the job
is killed in the middle of it, and another one runs it again.

    python examples/cron_on_many_servers.py
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import holdfast

SERVERS = 20
PERIOD = 3600.0


def main() -> int:
    if len(sys.argv) > 1:
        serve(sys.argv[1], sys.argv[2], float(sys.argv[3]), dies="dies" in sys.argv)
        return 0
    with tempfile.TemporaryDirectory(prefix="holdfast-example-") as name:
        url, log = f"sqlite:///{name}/locks.db", Path(name, "log")
        right = show_one_firing(url, log)
        return 0 if show_crash(url, log) and right else 1


def serve(url: str, log: str, late: float, *, dies: bool) -> None:
    """What cron starts on every server."""
    time.sleep(late)
    with holdfast.connect(url) as locks, locks.job("invoices", every=PERIOD) as run:
        if run is None:
            return
        with Path(log).open("a") as lines:
            lines.write(f"{run.token} {run.reruns}\n")
        if dies:
            print("running", flush=True)
            time.sleep(60)
        run.set_result({"invoices": 12})


def start(url: str, log: Path, late: float = 0.0, *more: str) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, url, str(log), str(late), *more]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def show_one_firing(url: str, log: Path) -> bool:
    print(f"{SERVERS} servers fire the job, by clocks that differ:", flush=True)
    chance = random.Random(1)
    servers = [start(url, log, chance.uniform(0.0, 0.5)) for _ in range(SERVERS)]
    for server in servers:
        server.communicate()
    runs = log.read_text().splitlines()
    with holdfast.connect(url) as locks:
        last = locks.job("invoices").last
    if last is None:
        return False
    print(f"  runs       {len(runs)}")
    print(f"  last run   {last.state}, by {last.owner}, with the result {last.result}")
    return len(runs) == 1 and last.result == {"invoices": 12}


def show_crash(url: str, log: Path) -> bool:
    log.unlink()
    url = url.replace("locks.db", "other.db")
    first = start(url, log, 0.0, "dies")
    with first:
        if first.stdout is None or first.stdout.readline() != "running\n":
            return False
        first.send_signal(signal.SIGKILL)
    print("\nthe server that runs it is killed; the next one fires:")
    start(url, log).communicate()
    runs = log.read_text().splitlines()
    print(f"  runs       {len(runs)}, the second one repeats the first: {runs[-1].endswith('True')}")
    return len(runs) == 2 and runs[-1].endswith("True")


if __name__ == "__main__":
    sys.exit(main())
