"""The environment of the command of ``holdfast run``: its grant, and not the password; and a run inside a
run."""

from __future__ import annotations

import json
import sys

import pytest

import holdfast
from cli.tools import CommandLine
from holdfast.fencing import Grant, parse_fence
from support import wait_until

HOLDFAST = (sys.executable, "-m", "holdfast")
SHOW = (
    "import json, os; print('env', json.dumps({k: v for k, v in os.environ.items() if k[:8] == 'HOLDFAST'}))"
)


def environment(command_line: CommandLine, *arguments: str) -> dict[str, str]:
    process = command_line.start("run", *arguments, sys.executable, "-c", SHOW)
    found: dict[str, str] = json.loads(process.expect("env"))
    assert process.wait() == 0, process.stderr
    return found


def test_the_grant_as_text(command_line: CommandLine, locks: holdfast.Client) -> None:
    told = environment(command_line, "x")
    grant = Grant.from_environ(told)
    assert told["HOLDFAST_NAME"] == "x"
    assert told["HOLDFAST_TOKEN"] == str(grant.token) == str(locks.inspect("x").token)
    assert grant.mode == "exclusive"
    with locks.lock("x") as lease:
        assert lease.fence.source == grant.fence.source
        assert lease.fence.nonce != grant.fence.nonce


def test_a_shared_grant_tells_its_peers(command_line: CommandLine, locks: holdfast.Client) -> None:
    with locks.rwlock("x").read() as lease:
        grant = Grant.from_environ(environment(command_line, "x", "-s"))
    assert (grant.mode, grant.peers) == ("read", (lease.token,))


def test_the_url_can_be_kept_back(command_line: CommandLine) -> None:
    assert environment(command_line, "x")["HOLDFAST_URL"] == command_line.url
    assert environment(command_line, "x", "--url", command_line.url)["HOLDFAST_URL"] == command_line.url
    for options in (["--no-url"], ["--no-url", "--url", command_line.url]):
        told = environment(command_line, "x", *options)
        assert "HOLDFAST_URL" not in told
        assert command_line.url not in told.values()
        assert parse_fence(told["HOLDFAST_FENCE"]).token == int(told["HOLDFAST_TOKEN"])


@pytest.mark.parametrize("kind", [[], ["-s"], ["-x"], ["--limit", "1"]], ids=str)
def test_a_run_inside_a_run_of_the_same_name_is_refused(command_line: CommandLine, kind: list[str]) -> None:
    process = command_line.finish("run", "x", *kind, *HOLDFAST, "run", "x", *kind, "echo", "ran")
    assert process.returncode == 64
    assert process.stdout == ""
    assert "'x' is held by an enclosing run" in process.stderr
    assert "--nested" in process.stderr


def test_also_further_out(command_line: CommandLine) -> None:
    inner = [*HOLDFAST, "run", "y", *HOLDFAST, "run", "x", "echo", "ran"]
    process = command_line.finish("run", "x", *inner)
    assert process.returncode == 64
    assert "held by an enclosing run" in process.stderr


def test_other_names_and_namespaces_are_other_locks(command_line: CommandLine) -> None:
    inner = [*HOLDFAST, "run", "--namespace", "other", "x", *HOLDFAST, "run", "y", "echo", "ran"]
    assert command_line.start("run", "x", *inner).succeed() == "ran\n"


def test_a_lease_that_is_over_stands_in_nobody_s_way(
    command_line: CommandLine, locks: holdfast.Client
) -> None:
    told = environment(command_line, "x")
    process = command_line.finish("run", "x", "echo", "ran", env={"HOLDFAST_HELD": told["HOLDFAST_HELD"]})
    assert process.stdout == "ran\n"
    # Another holder by now: it is waited for.
    with locks.lock("x"):
        waiting = command_line.start("run", "x", "echo", "ran", env={"HOLDFAST_HELD": told["HOLDFAST_HELD"]})
        wait_until(lambda: len(locks.inspect("x").waiters) == 1)
    assert waiting.succeed() == "ran\n"


def test_nested_runs_under_the_same_lease(command_line: CommandLine, locks: holdfast.Client) -> None:
    show = [sys.executable, "-c", SHOW]
    both = f"import subprocess, sys; {SHOW}; subprocess.run(sys.argv[1:], check=True)"
    outer = [sys.executable, "-c", both]
    inner = [*HOLDFAST, "run", "--nested", "x", *show]
    process = command_line.start("run", "x", *outer, *HOLDFAST, "run", "y", *inner)
    first = json.loads(process.expect("env"))
    second = json.loads(process.expect("env"))
    assert process.wait() == 0, process.stderr
    for key in ("HOLDFAST_NAME", "HOLDFAST_TOKEN", "HOLDFAST_FENCE", "HOLDFAST_NAMESPACE", "HOLDFAST_URL"):
        assert first[key] == second[key]
    assert locks.inspect("x").token == int(first["HOLDFAST_TOKEN"]), "no second grant was made"
    assert locks.inspect("y").token > 0


def test_nested_outside_of_any_run_locks_as_usual(command_line: CommandLine, locks: holdfast.Client) -> None:
    told = environment(command_line, "x", "--nested")
    assert told["HOLDFAST_TOKEN"] == str(locks.inspect("x").token)


@pytest.mark.parametrize(("command", "status"), [(["false"], 1), (["no-such-command"], 127), (["/"], 126)])
def test_the_status_of_a_nested_command(command_line: CommandLine, command: list[str], status: int) -> None:
    process = command_line.finish("run", "x", *HOLDFAST, "run", "--nested", "x", *command)
    assert process.returncode == status


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[1]",
        '[["x", "y"]]',
        '[["x", "y", "z"]]',
        '{"x": 1}',
        "[[[[",
        "3",
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_what_others_wrote_into_the_variable_is_passed_over(command_line: CommandLine, text: str) -> None:
    assert command_line.start("run", "x", "echo", "ran", env={"HOLDFAST_HELD": text}).succeed() == "ran\n"
