"""``ls``, ``show``, ``break`` and ``guarantees``: for people and for programs."""

from __future__ import annotations

import base64
import json
import os
import signal

import pytest

import holdfast
from cli.tools import CommandLine
from support import wait_until

HOLDER_FIELDS = {
    "owner",
    "client",
    "host",
    "pid",
    "thread",
    "mode",
    "token",
    "age",
    "remaining",
    "metadata",
}
LOCK_FIELDS = {"name", "kind", "locked", "limit", "token", "holders", "waiters", "value_base64"}


def test_show_as_json(command_line: CommandLine, locks: holdfast.Client) -> None:
    with locks.lock("x", metadata={"for": "test"}) as lease:
        lease.set_value(b"\xff\x00value")
        waiter = command_line.start("run", "x", "--", "true")
        wait_until(lambda: len(locks.inspect("x").waiters) == 1)
        shown = json.loads(command_line.start("show", "x", "--json").succeed())
    assert set(shown) == LOCK_FIELDS
    assert (shown["name"], shown["kind"], shown["locked"]) == ("x", "lock", True)
    assert shown["token"] == lease.token
    (holder,) = shown["holders"]
    assert set(holder) == HOLDER_FIELDS
    assert (holder["pid"], holder["token"]) == (os.getpid(), lease.token)
    assert holder["metadata"] == {"for": "test"}
    assert [waiting["pid"] for waiting in shown["waiters"]] == [waiter.pid]
    assert base64.b64decode(shown["value_base64"]) == b"\xff\x00value"


def test_show_for_people(command_line: CommandLine, locks: holdfast.Client) -> None:
    with locks.lock("x", metadata={"for": "test"}) as lease:
        said = command_line.start("show", "x").succeed()
    for part in ("held", str(lease.token), f"/{os.getpid()}/", "for=test"):
        assert part in said


def test_show_a_name_that_nobody_used(command_line: CommandLine) -> None:
    assert "never used" in command_line.start("show", "x").succeed()
    shown = json.loads(command_line.start("show", "x", "--json").succeed())
    assert (shown["kind"], shown["locked"], shown["holders"]) == (None, False, [])


def test_ls(command_line: CommandLine, locks: holdfast.Client) -> None:
    assert json.loads(command_line.start("ls", "--json").succeed()) == []
    with locks.lock("b/1"), locks.rwlock("a").read(), locks.semaphore("b/2", 3):
        listed = json.loads(command_line.start("ls", "--json").succeed())
        below = json.loads(command_line.start("ls", "b/", "--json").succeed())
        said = command_line.start("ls").succeed()
    assert [(lock["name"], lock["kind"]) for lock in listed] == [
        ("a", "rwlock"),
        ("b/1", "lock"),
        ("b/2", "semaphore"),
    ]
    assert all(set(lock) == LOCK_FIELDS for lock in listed)
    assert [lock["name"] for lock in below] == ["b/1", "b/2"]
    for part in ("a", "1 reader", "b/1", "held", "b/2", "1 of 3"):
        assert part in said


def test_a_long_name_is_whole_in_a_pipe(command_line: CommandLine, locks: holdfast.Client) -> None:
    name = "n" * 500
    with locks.lock(name):
        assert name in command_line.start("ls").succeed()
        assert name in command_line.start("show", name).succeed()


def test_names_cannot_steer_the_terminal(command_line: CommandLine, locks: holdfast.Client) -> None:
    name = "red\x1b[31m\nnext [bold]line[/bold]"
    with locks.lock(name, metadata={"note": "\x1b]0;title\x07"}):
        for command in (["ls"], ["show", name]):
            said = command_line.start(*command).succeed()
            assert "\x1b" not in said
            assert "\x07" not in said
            assert "red\\x1b[31m\\nnext [bold]line[/bold]" in said
        assert json.loads(command_line.start("show", name, "--json").succeed())["name"] == name


def test_a_reader_that_leaves_early_is_no_error(command_line: CommandLine, locks: holdfast.Client) -> None:
    held = [locks.lock(f"{number:04}" + "n" * 400) for number in range(300)]
    for lock in held:
        assert lock.acquire() is not None
    code = """
        import subprocess, sys
        ls = subprocess.Popen([sys.executable, "-m", "holdfast", *sys.argv[1:]], stdout=subprocess.PIPE)
        ls.stdout.readline()
        ls.stdout.close()
        print("status", ls.wait())
    """
    for arguments in (["ls"], ["ls", "--json"]):
        # Unbuffered, Python itself passes over a write that was cut short.
        process = command_line.script(code, *arguments, env={"PYTHONUNBUFFERED": None})
        assert process.expect("status") == str(-signal.SIGPIPE)
        assert process.wait() == 0
        assert process.stderr == ""
    for lock in held:
        lock.release()


def test_break(command_line: CommandLine, locks: holdfast.Client) -> None:
    lease = locks.lock("x").acquire()
    assert lease is not None
    broken = json.loads(command_line.start("break", "x", "--reason", "test", "--json").succeed())
    assert broken == {"name": "x", "broken": True, "token": broken["token"]}
    assert broken["token"] > lease.token
    assert lease.wait_lost(10)
    with pytest.raises(holdfast.LockLost) as lost:
        lease.release()
    assert lost.value.reason == "broken"


def test_break_only_the_grant_that_was_looked_at(command_line: CommandLine, locks: holdfast.Client) -> None:
    with locks.lock("x") as lease:
        refused = command_line.finish("break", "x", "--reason", "test", "--token", str(lease.token - 1))
        assert refused.returncode == 1
        assert "does not hold" in refused.stderr
        lease.check()
        as_json = command_line.finish("break", "x", "--reason", "test", "--token", "1", "--json")
        assert json.loads(as_json.stdout) == {"name": "x", "broken": False, "token": None}
    lease = locks.lock("x").acquire() or pytest.fail("not granted")
    said = command_line.start("break", "x", "--reason", "test", "--token", str(lease.token)).succeed()
    assert said.startswith("broke 'x'")
    assert lease.wait_lost(10)


def test_break_what_nobody_holds(command_line: CommandLine) -> None:
    process = command_line.finish("break", "x", "--reason", "test")
    assert process.returncode == 1
    assert process.stderr_lines == ["holdfast: 'x' is not held"]


@pytest.mark.parametrize("url", [None, "memory://"])
def test_guarantees(command_line: CommandLine, locks: holdfast.Client, url: str | None) -> None:
    options = ["--url", url] if url else []
    told = json.loads(command_line.start("guarantees", "--json", *options).succeed())
    with holdfast.connect(url or command_line.url) as client:
        promised = client.guarantees
        assert told["url"] == client.url
    assert told["engine"] == promised.engine
    assert told["scope"] == promised.scope
    assert told["primitives"] == list(promised.primitives)
    assert told["faults"] == dict(promised.faults)
    said = command_line.start("guarantees", *options).succeed()
    for part in (promised.scope, promised.fencing, *promised.needs, *promised.faults.values()):
        assert part in said
