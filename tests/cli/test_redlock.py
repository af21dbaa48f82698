"""``holdfast redlock``: nodes are made a set, looked at, and rejoin it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import holdfast
from cli.tools import LONG_TTL, CommandLine
from faults.redlock_nodes import Nodes, nodes
from holdfast import redlock
from holdfast.cli.exits import Status
from support import wait_until

pytestmark = pytest.mark.engine("redlock")

SLEEPING = "import signal; print('runs', flush=True); signal.pause()"


@pytest.fixture
def three() -> Iterator[Nodes]:
    with nodes(3) as three:
        yield three


@pytest.fixture
def at_nodes(three: Nodes) -> Iterator[CommandLine]:
    with ExitStack() as stack:
        yield CommandLine(three.url(init="manual"), stack)


def test_a_set_from_its_beginning_through_a_loss(at_nodes: CommandLine, three: Nodes) -> None:
    labels = [proxy.address for proxy in three.proxies]

    def states() -> list[str]:
        return [each.state for each in redlock.status(at_nodes.url)]

    told = json.loads(at_nodes.finish("redlock", "status", "--json").stdout)
    assert [(each["node"], each["state"]) for each in told] == [(label, "empty") for label in labels]
    process = at_nodes.finish("redlock", "status")
    assert process.returncode == Status.UNAVAILABLE
    assert process.stdout.count("holdfast redlock init") == 3
    assert "rejoin" not in process.stdout
    with (
        holdfast.connect(at_nodes.url, io_timeout=0.5) as client,
        pytest.raises(holdfast.EngineUnavailable, match="holdfast redlock init"),
    ):
        client.lock("x").acquire(timeout=0)

    made = json.loads(at_nodes.start("redlock", "init", "--json").succeed())
    assert redlock.initialise(at_nodes.url) == made["set"]
    assert states() == ["ready"] * 3
    with holdfast.connect(at_nodes.url) as client, client.lock("x", ttl=1, timeout=0):
        pass

    three.servers[1].restart(keep_data=False, kill=True)
    assert states() == ["ready", "empty", "ready"]
    assert "redlock rejoin" in at_nodes.start("redlock", "status").succeed()
    wrong = at_nodes.finish("redlock", "rejoin", "nowhere:1")
    assert (wrong.returncode, "is not a node of this URL" in wrong.stderr) == (Status.USAGE, True)
    said = at_nodes.start("redlock", "rejoin", "--wait", "100ms").succeed()
    assert f"{labels[1]}" in said
    assert "rejoined: 1 fences were copied" in said
    assert states() == ["ready"] * 3
    again = at_nodes.finish("redlock", "rejoin")
    assert (again.returncode, again.stdout) == (0, "")
    assert "every node already takes part" in again.stderr

    three.servers[0].kill()
    assert states() == ["unreachable", "ready", "ready"]
    lost = at_nodes.finish("redlock", "rejoin", labels[0])
    assert lost.returncode == Status.UNAVAILABLE
    assert "did not answer" in lost.stdout


def test_an_operator_can_say_that_nothing_was_lost(at_nodes: CommandLine, three: Nodes) -> None:
    """Of a restarted node whose settings do not say so. One that forgot has to rejoin, whatever is said."""
    labels = [proxy.address for proxy in three.proxies]
    redlock.initialise(at_nodes.url)
    three.servers[1].command("CONFIG", "SET", "appendfsync", "everysec")
    three.servers[1].command("CONFIG", "REWRITE")
    three.servers[1].restart()
    assert [each.state for each in redlock.status(at_nodes.url)] == ["ready", "restarted", "ready"]
    said = at_nodes.start("redlock", "rejoin", labels[1], "--durable", "--json").succeed()
    assert json.loads(said) == {labels[1]: "trusted: its mark was renewed"}
    assert [each.state for each in redlock.status(at_nodes.url)] == ["ready"] * 3

    three.servers[2].restart(keep_data=False, kill=True)
    said = at_nodes.start("redlock", "rejoin", labels[2], "--durable", "--wait", "100ms").succeed()
    assert "rejoined: 0 fences were copied" in said


def is_held(three: Nodes) -> bool:
    """A node that is still being connected to when the others have granted it is not asked any more."""
    return len([owner for owner in three.claims() if owner]) > three.size // 2


def test_sigterm_while_a_command_runs(at_nodes: CommandLine, three: Nodes) -> None:
    redlock.initialise(at_nodes.url)
    wrapper = at_nodes.start("run", "x", "--ttl", LONG_TTL, "--", sys.executable, "-c", SLEEPING)
    wrapper.expect("runs")
    wait_until(lambda: is_held(three))
    wrapper.terminate()
    assert wrapper.wait() == 128 + signal.SIGTERM
    assert three.claims() == [""] * 3
    assert wrapper.stderr_lines == []


def test_sigterm_while_it_waits(at_nodes: CommandLine, three: Nodes) -> None:
    redlock.initialise(at_nodes.url)
    with holdfast.connect(at_nodes.url) as client, client.lock("x", ttl=float(LONG_TTL)) as lease:
        wait_until(lambda: is_held(three))
        owners, asked = three.claims(), three.evaluated(0)
        waiter = at_nodes.start("run", "x", "--ttl", LONG_TTL, "--", "echo", "ran")
        wait_until(lambda: three.evaluated(0) > asked + 2)  # it has asked, and asks again
        waiter.terminate()
        assert waiter.wait() == 128 + signal.SIGTERM
        assert waiter.stdout_lines == []
        assert waiter.stderr_lines == []
        assert three.claims() == owners
        lease.check()


def test_what_is_no_redlock_is_refused(command_line: CommandLine) -> None:
    process = command_line.finish("redlock", "status")
    assert process.returncode == Status.USAGE
    assert "redlock://" in process.stderr
    process = command_line.finish("redlock")
    assert process.returncode == Status.USAGE
    assert "rejoin" in process.stderr
