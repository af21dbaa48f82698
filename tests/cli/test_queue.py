"""``holdfast queue``: jobs are put, seen, changed and worked off from the command line."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import holdfast.queue
from cli.tools import CommandLine
from holdfast.cli.exits import Status
from holdfast.queue import Queue

MODULE = """
import time
import holdfast.queue
import holdfast.queue.aio

queue = holdfast.queue.connect()
worker = holdfast.queue.Worker(queue, concurrency=2, grace=10)

@worker.job("mail")
def send(job):
    if job.payload == "long":
        print("begun", flush=True)
        while not worker.is_stopping:
            time.sleep(0.01)
    return job.payload

@worker.job("bad")
def bad(job):
    raise ValueError("no such customer")

awaited = holdfast.queue.aio.AsyncWorker(holdfast.queue.aio.connect())

@awaited.job("mail")
async def send_awaited(job):
    return {"awaited": job.payload}
"""


@pytest.fixture
def queue(tmp_path: Path) -> Any:
    with holdfast.queue.connect(f"sqlite:///{tmp_path / 'queue.db'}") as opened:
        yield opened


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: Queue) -> Any:
    (tmp_path / "jobs.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        yield CommandLine(f"sqlite:///{tmp_path / 'queue.db'}", stack)


def document(line: CommandLine, *words: str) -> Any:
    return json.loads(line.start("queue", *words, "--json").succeed())


def test_a_job_from_the_command_line(line: CommandLine, queue: Queue) -> None:
    put = document(line, "put", "mail", '{"to": "ann"}', "--key", "7", "--delay", "1h", "--priority", "3")
    found = document(line, "show", str(put["id"]))
    assert (found["payload"], found["key"], found["priority"]) == ({"to": "ann"}, "7", 3)
    assert found["state"] == "scheduled"
    assert document(line, "put", "mail", "--key", "7") == put
    assert document(line, "cancel", str(put["id"])) == {"cancelled": [put["id"]]}
    again = line.finish("queue", "cancel", str(put["id"]))
    assert again.returncode == Status.NOTHING_DONE
    assert "was over" in again.stderr
    assert document(line, "retry", str(put["id"])) == {"retried": [put["id"]]}
    listed = document(line, "ls")
    assert listed["counts"]["ready"] == 1
    assert [job["id"] for job in listed["jobs"]] == [put["id"]]
    assert "mail" in line.start("queue", "ls").succeed()
    assert "of kind mail" in line.start("queue", "show", str(put["id"])).succeed()
    assert queue.prune(0) == 0


def test_pause_and_prune(line: CommandLine, queue: Queue) -> None:
    assert document(line, "pause", "mail") == {"kind": "mail", "paused": True}
    queue.put("mail")
    assert queue.claim("mail") == []
    assert "holdfast queue resume mail" in line.start("queue", "ls").succeed()
    assert document(line, "resume", "mail") == {"kind": "mail", "paused": False}
    (job,) = queue.claim("mail")
    job.fail("no", final=True)
    assert document(line, "prune", "--older-than", "0") == {"removed": 0}
    assert document(line, "prune", "--older-than", "0", "--dead") == {"removed": 1}


def test_a_worker_from_the_command_line(line: CommandLine, queue: Queue) -> None:
    mail, bad = queue.put("mail", "ann"), queue.put("bad", max_attempts=1)
    assert document(line, "work", "jobs:worker", "--until-idle") == {"kinds": ["mail", "bad"], "ended": 2}
    awaited = queue.put("mail", "eve")
    assert document(line, "work", "jobs:awaited", "--until-idle")["ended"] == 1
    found = [queue.get(id_) for id_ in (mail, bad, awaited)]
    assert [each.state for each in found if each] == ["finished", "dead", "finished"]
    assert [each.result for each in found if each] == ["ann", None, {"awaited": "eve"}]
    assert found[1] is not None
    assert "holdfast/queue" not in (found[1].error or "")
    listed = line.start("queue", "ls", "--state", "dead").succeed()
    assert "no such customer" in listed


def test_sigterm_lets_it_finish_what_it_runs(line: CommandLine, queue: Queue) -> None:
    id_ = queue.put("mail", "long")
    process = line.start("queue", "work", "jobs:worker")
    process.expect("begun")
    process.terminate()
    process.succeed()
    found = queue.get(id_)
    assert found is not None
    assert (found.state, found.attempt) == ("finished", 1)


def test_what_is_refused(line: CommandLine) -> None:
    def complaint(*words: str) -> str:
        process = line.finish("queue", *words)
        assert process.returncode in {Status.USAGE, Status.NOTHING_DONE}
        return process.stderr

    assert "no JSON" in complaint("put", "mail", "{to: ann}")
    assert "there is no job 99" in complaint("show", "99")
    assert "whole number" in complaint("show", "mail")
    assert "the states are" in complaint("ls", "--state", "gone")
    assert "MODULE:WORKER" in complaint("work", "jobs")
    assert "its workers are worker, awaited" in complaint("work", "jobs:queue")
    assert "there is no module 'none'" in complaint("work", "none:worker")
    assert "postgresql:// or" in complaint("ls", "--url", "redis://localhost")
