"""What the command gets: its environment, its descriptors, its input."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import holdfast
from cli.tools import CommandLine
from holdfast.fencing import parse_fence
from support import wait_until

PRINT_ENVIRONMENT = (
    "import os, json; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('HOLDFAST')}))"
)
PRINT_DESCRIPTORS = "import os; print(*sorted(os.listdir('/proc/self/fd'), key=int))"


def test_environment(command_line: CommandLine, locks: holdfast.Client) -> None:
    command = ("run", "a name/ü", "--", sys.executable, "-c", PRINT_ENVIRONMENT)
    process = command_line.start(*command, env={"HOLDFAST_TEST_ENGINES": None})  # ours may be set
    told = json.loads(process.succeed())
    fence = told.pop("HOLDFAST_FENCE")
    assert parse_fence(fence).token == int(told["HOLDFAST_TOKEN"])
    ((name, owner, held),) = json.loads(told.pop("HOLDFAST_HELD"))
    assert (name, owner.split("/")[1], held) == ("a name/ü", str(process.pid), fence)
    assert told == {
        "HOLDFAST_NAME": "a name/ü",
        "HOLDFAST_TOKEN": str(locks.inspect("a name/ü").token),
        "HOLDFAST_URL": command_line.url,
        "HOLDFAST_NAMESPACE": "holdfast",
    }


def test_options_win_over_the_environment_and_reach_the_command(command_line: CommandLine) -> None:
    options = ("--url", command_line.url, "--namespace", "mine")
    environment = {"HOLDFAST_URL": "nonsense://", "HOLDFAST_NAMESPACE": "theirs"}
    process = command_line.start(
        "run", "x", *options, "--", sys.executable, "-c", PRINT_ENVIRONMENT, env=environment
    )
    got = json.loads(process.succeed())
    assert (got["HOLDFAST_URL"], got["HOLDFAST_NAMESPACE"]) == (command_line.url, "mine")


def test_a_command_can_take_more_locks_on_the_same_engine(command_line: CommandLine) -> None:
    nested = (sys.executable, "-m", "holdfast", "run", "inner", "--namespace", "other", "--")
    process = command_line.start(
        "run",
        "outer",
        "--",
        *nested,
        sys.executable,
        "-c",
        PRINT_ENVIRONMENT,
        env={"HOLDFAST_NAMESPACE": "n"},
    )
    got = json.loads(process.succeed())
    assert (got["HOLDFAST_NAME"], got["HOLDFAST_NAMESPACE"]) == ("inner", "other")


def test_namespaces_are_apart(command_line: CommandLine, locks: holdfast.Client) -> None:
    with locks.lock("x"):
        assert command_line.finish("run", "x", "-n", "--", "true").returncode == 75
        assert command_line.finish("run", "x", "-n", "--namespace", "other", "--", "true").returncode == 0


def test_no_descriptor_leaks_into_the_command(command_line: CommandLine) -> None:
    process = command_line.start("run", "x", "--", sys.executable, "-c", PRINT_DESCRIPTORS)
    assert process.succeed().split() == ["0", "1", "2", "3"], "3 is the listing itself"


def test_descriptors_of_the_caller_reach_the_command(command_line: CommandLine) -> None:
    """Process substitution and socket activation need them: ``holdfast run x -- diff <(a) <(b)``."""
    wrapped = (sys.executable, "-m", "holdfast", "run", "x", "--", sys.executable, "-c", PRINT_DESCRIPTORS)
    process = command_line.program("sh", "-c", 'exec 7</dev/null; exec "$@"', "sh", *wrapped)
    assert process.succeed().split() == ["0", "1", "2", "3", "7"]


def test_input_and_output_are_the_commands(command_line: CommandLine) -> None:
    process = command_line.start("run", "x", "--", "cat")
    process.send("through")
    process.close_stdin()
    assert process.succeed() == "through\n"


def test_a_second_double_dash_is_the_commands(command_line: CommandLine) -> None:
    assert command_line.start("run", "x", "--", "echo", "-n", "--", "-x").succeed().strip() == "-- -x"
    assert command_line.start("run", "--", "-x", "echo", "named -x").succeed() == "named -x\n"


def test_the_holder_tells_what_runs_without_its_arguments(
    command_line: CommandLine, locks: holdfast.Client
) -> None:
    process = command_line.start("run", "x", "--", sys.executable, "-c", "print('up', flush=True); input()")
    process.expect("up")
    (holder,) = locks.inspect("x").holders
    assert holder.metadata == {"command": os.path.basename(sys.executable)}
    assert holder.pid == process.pid


def test_a_command_whose_file_name_is_not_text(
    command_line: CommandLine, locks: holdfast.Client, tmp_path: Path
) -> None:
    program = os.fsencode(tmp_path) + b"/caf\xe9"
    os.symlink("/bin/cat", program)
    process = command_line.start("run", "x", os.fsdecode(program))
    wait_until(lambda: bool(locks.inspect("x").holders))
    assert locks.inspect("x").holders[0].metadata == {"command": "caf\\xe9"}
    process.close_stdin()
    assert process.wait() == 0


def test_options_may_stand_on_either_side_of_the_name(command_line: CommandLine) -> None:
    assert command_line.start("run", "--ttl", "5", "x", "-v", "--", "echo", "-v").succeed() == "-v\n"
