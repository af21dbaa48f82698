"""Output that cannot be written, and text that must not reach a terminal as it is."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading

import pytest

import holdfast
from cli.tools import CommandLine
from holdfast.cli.text import printable, printable_json, printable_lines

HOLDFAST = (sys.executable, "-m", "holdfast")
EVIL = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202eback\u2066\r\n\x7f\u200b\udcff\U000e0041"
WRITERS = [
    ["--help"],
    ["--version"],
    ["run", "--help"],
    ["ls"],
    ["ls", "--json"],
    ["show", "x"],
    ["show", "x", "--json"],
    ["guarantees"],
    ["guarantees", "--json"],
    ["break", "x", "--reason", "test"],
    ["init", "--sql", "--url", "postgresql://h/db"],
    ["completion", "bash"],
    ["redlock", "--help"],
]


def run(
    command_line: CommandLine, redirection: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``holdfast ARGUMENTS`` with a redirection of the shell's."""
    script = f'exec "$@" {redirection}'
    return subprocess.run(
        ["sh", "-c", script, "sh", *HOLDFAST, *arguments],
        env={"HOLDFAST_URL": command_line.url, "PATH": "/bin:/usr/bin", "LANG": "C.UTF-8", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("arguments", WRITERS, ids=" ".join)
@pytest.mark.parametrize(
    ("redirection", "reason"), [("> /dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
def test_a_full_or_closed_output_is_one_line(
    command_line: CommandLine, locks: holdfast.Client, redirection: str, reason: str, arguments: list[str]
) -> None:
    with locks.lock("x", if_lost="note"):
        done = run(command_line, redirection, *arguments)
    assert done.returncode == 74
    assert done.stderr == f"holdfast: cannot write to standard output: {reason}\n"


@pytest.mark.parametrize(
    "arguments", [["ls"], ["ls", "--json"], ["--help"], ["watch", "--json"]], ids=" ".join
)
def test_a_reader_that_left_ends_it_as_it_ends_any_program(
    command_line: CommandLine, locks: holdfast.Client, arguments: list[str]
) -> None:
    with locks.lock("x"):
        process = subprocess.Popen(
            [*HOLDFAST, *arguments],
            env={"HOLDFAST_URL": command_line.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.close()
        process.stdout = None
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (-signal.SIGPIPE, b"")


def test_a_command_runs_with_closed_streams(command_line: CommandLine, locks: holdfast.Client) -> None:
    done = run(command_line, "<&- >&-", "run", "x", "sh", "-c", "echo said >&2; cat || exit 7")
    assert "said" in done.stderr
    assert done.returncode == 7
    assert not locks.inspect("x").locked
    assert run(command_line, "2>&-", "run", "x", "-v", "echo", "ran").stdout == "ran\n"


def test_a_table_on_a_full_disk_without_a_buffer(command_line: CommandLine) -> None:
    """PYTHONUNBUFFERED is usual in containers."""
    done = run(command_line, "> /dev/full", "guarantees", PYTHONUNBUFFERED="1")
    assert done.returncode == 74
    assert done.stderr == "holdfast: cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("redirection", ["2>&-", "2> /dev/full"])
@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["run", "y", "-v", "true"], 0),
        (["run", "-n", "x", "true"], 75),
        (["run", "y", "/no/such"], 127),
        (["ls", "too", "many"], 64),
        (["fence"], 64),
    ],
    ids=lambda it: " ".join(it) if isinstance(it, list) else "",
)
def test_the_status_does_not_depend_on_standard_error(
    command_line: CommandLine, locks: holdfast.Client, redirection: str, arguments: list[str], status: int
) -> None:
    with locks.lock("x", if_lost="note"):
        assert run(command_line, redirection, *arguments).returncode == status


def test_errors_of_the_system_have_their_names(command_line: CommandLine) -> None:
    """No more processes: a name and a status, no traceback."""
    code = """
        import errno, os, sys
        def fork(): raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        os.fork = fork
        from holdfast.cli import main
        sys.exit(main(["run", "x", "true"]))
    """
    process = command_line.script(code)
    assert process.wait() == 71
    assert process.stderr_lines == ["holdfast: Resource temporarily unavailable"]


# Text of others


def test_every_place_where_text_of_others_is_shown(command_line: CommandLine, locks: holdfast.Client) -> None:
    name = EVIL.replace("\udcff", "")
    thread = f"owner{name}"
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with locks.lock(name, metadata={"command": name, name: "key"}) as lease:
            lease.set_value(name.encode() + b"\x1b\xff")
            held.set()
            over.wait(60)

    holder = threading.Thread(target=hold, name=thread)
    holder.start()
    try:
        assert held.wait(30)
        commands = [
            ["ls"],
            ["ls", "--json"],
            ["ls", f"{name}\x1b"],
            ["show", name],
            ["show", name, "--json"],
            ["run", "-n", "-v", name, "true"],
            ["run", name, "--limit", "2", "true"],
            ["break", name, "--reason", name, "--token", "1"],
            [name],
            ["ls", f"--{name}"],
            ["run", "y", name],
        ]
        for command in commands:
            process = command_line.finish(*command)
            said = process.stdout + process.stderr
            assert said, command
            bad = {c for c in said if not c.isprintable() and c != "\n"}
            assert not bad, (command, bad)
        shown = json.loads(command_line.finish("show", name, "--json").stdout)
    finally:
        over.set()
        holder.join()
    assert shown["name"] == name
    assert thread in shown["holders"][0]["owner"]
    assert shown["holders"][0]["metadata"] == {"command": name, name: "key"}


def test_what_an_engine_says_is_printable_too(command_line: CommandLine) -> None:
    code = """
        import logging, sys
        import holdfast
        from holdfast.cli import app, main
        evil = "first\\x1b[2J\\nholdfast: forged\\x9b"
        def fail(*_, **__):
            logging.getLogger("holdfast").warning("warned %s", evil)
            raise holdfast.EngineUnavailable(evil)
        holdfast.connect = fail
        sys.exit(main(["ls"]))
    """
    process = command_line.script(code)
    assert process.wait() == 69
    assert process.stderr_lines == [
        "holdfast: warned first\\x1b[2J",
        "  holdfast: forged\\x9b",
        "holdfast: first\\x1b[2J",
        "  holdfast: forged\\x9b",
    ]


def test_what_is_spelled_out() -> None:
    assert printable("naïve 名 😀") == "naïve 名 😀"
    assert all(character.isprintable() for character in printable(EVIL))
    assert printable_lines("one\ntwo\r") == "one\n  two\\r"
    document = json.dumps({EVIL: [EVIL]}, ensure_ascii=False, indent=1)
    shown = printable_json(document)
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert json.loads(shown) == {EVIL: [EVIL]}
