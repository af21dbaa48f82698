"""``holdfast demo``: the scenes are right, and however it ends nothing is left of it."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import pytest

from cli.tools import CommandLine, at_a_terminal, wait_until_dead
from holdfast.cli.processes import descendants
from support import Process

TIMEOUT_SECONDS = 60.0
"""It takes a few seconds; a busy machine may take its time."""

linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made; empty unless one is left behind."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_all_scenes_as_json(command_line: CommandLine, scratch: Path, tmp_path: Path) -> None:
    process = command_line.start("demo", "--json")
    told = json.loads(process.succeed(TIMEOUT_SECONDS))
    assert process.stderr == ""
    assert told["right"] is True
    assert told["processes"] == 20
    cron, shop, paused, killed = told["scenes"]
    for number, scene in enumerate(told["scenes"], 1):
        assert (scene["scene"], scene["right"]) == (number, True)
        assert all(check["right"] is not False for check in scene["checks"])
    assert (cron["figures"]["runs"], cron["figures"]["found_done"]) == (2, 38)
    assert (shop["figures"]["sold_with_lock"], shop["figures"]["told_sold_out"]) == (1, 9)
    assert shop["figures"]["sold_without_lock"] >= 1
    assert "too old" in paused["figures"]["refusal"]
    assert paused["figures"]["loss_reason"] == "expired"
    assert (paused["figures"]["balance_with_guard"], paused["figures"]["balance_without_guard"]) == (115, 110)
    assert killed["figures"]["longest_seconds"] < killed["figures"]["lease_left_seconds"]
    assert killed["figures"]["in_order"] is True
    assert left_in(scratch) == []
    assert left_in(tmp_path) == ["scratch"], "the locks of its user are not touched"


def test_at_a_terminal(command_line: CommandLine, scratch: Path) -> None:
    arguments = ("-m", "holdfast", "demo", "--scene", "4")
    session = at_a_terminal(command_line, "env", "TERM=xterm", sys.executable, *arguments)
    assert session.expect("status", TIMEOUT_SECONDS) == "0"
    said = re.sub(r"\x1b\[[0-9;]*m", "", session.stdout)
    for part in ("worker  1 HOLDS", "worker  2 waits", "worker  1 killed", "5 killed, 6 grants", "right"):
        assert part in said
    assert "WRONG" not in said
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l"), "the cursor is back"
    assert left_in(scratch) == []


def with_a_stopped_worker(process: Process) -> None:
    """Scene 3 has come to where one worker cannot end by itself."""
    while "(SIGSTOP)" not in process.expect():
        pass


@linux
def test_ctrl_c_clears_everything_away(command_line: CommandLine, scratch: Path) -> None:
    arguments = ("-m", "holdfast", "demo", "--scene", "3")
    session = at_a_terminal(command_line, "env", "TERM=xterm", sys.executable, *arguments)
    with_a_stopped_worker(session)
    workers = descendants(session.pid)
    assert len(workers) == 1 + 2
    session.send("^C")
    assert session.expect("status") == str(128 + signal.SIGINT)
    wait_until_dead(*workers)
    assert "Traceback" not in session.stdout
    assert left_in(scratch) == []


@linux
def test_workers_die_with_a_director_that_is_killed(command_line: CommandLine, scratch: Path) -> None:
    process = command_line.start("demo", "--scene", "3")
    with_a_stopped_worker(process)
    workers = descendants(process.pid)
    assert len(workers) == 2
    process.kill()
    wait_until_dead(*workers)


def test_what_goes_wrong_is_said(command_line: CommandLine, scratch: Path) -> None:
    code = """
        import sys
        from holdfast.cli import main
        from holdfast.cli.demo import data
        # A shop that sells whether or not there is something to sell.
        data.Shop.units = lambda self: 1
        sys.exit(main(["demo", "--scene", "2"]))
    """
    process = command_line.script(code)
    assert process.wait(TIMEOUT_SECONDS) == 1
    assert "10 sold, 0 found it sold out" in process.stdout
    assert "WRONG" in process.stdout


def test_a_worker_that_fails_is_no_silence(command_line: CommandLine, scratch: Path) -> None:
    code = """
        import sys
        from holdfast.cli import main
        from holdfast.cli.demo import data
        del data.Shop.buy
        sys.exit(main(["demo", "--scene", "2", "--scene", "3"]))
    """
    process = command_line.script(code)
    assert process.wait(TIMEOUT_SECONDS) == 1
    assert "AttributeError" in process.stderr
    assert "the scene is played to its end" in process.stdout
    assert left_in(scratch) == []


def test_a_director_that_comes_too_late_says_so(command_line: CommandLine, scratch: Path) -> None:
    code = """
        import sys
        from holdfast.cli import main
        from holdfast.cli.demo.troupe import Troupe

        shipped = Troupe.stop

        def stop(self, worker):
            # It is held up until the other one has come and gone.
            moment = shipped(self, worker)
            while not any(report.kind == "finished" for report in self._reports):
                self.listen(1.0)
            return moment

        Troupe.stop = stop
        sys.exit(main(["demo", "--scene", "3"]))
    """
    process = command_line.script(code)
    assert process.wait(TIMEOUT_SECONDS) == 1
    assert "ended before it could be observed" in process.stderr
    assert "Traceback" not in process.stderr
    assert left_in(scratch) == []


def test_help_and_misuse(command_line: CommandLine) -> None:
    said = command_line.start("demo", "--help").succeed()
    for part in ("Examples", "holdfast demo", "--scene", "--json", "Exit status"):
        assert part in said
    assert command_line.finish("demo", "--scene", "5").returncode == 64
