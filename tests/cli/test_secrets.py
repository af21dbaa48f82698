"""Passwords in URLs are never printed, wherever something goes wrong."""

from __future__ import annotations

import pytest

from cli.tools import CommandLine
from holdfast.cli.redaction import MASK, learn, scrub

SECRET = "hunter2-and-more"
URLS = [
    f"redis://user:{SECRET}@127.0.0.1:1/0",
    f"postgresql://user:{SECRET}@127.0.0.1:1/db?connect_timeout=1",
    f"nonsense://user:{SECRET}@host/",
    f"sqlite://user:{SECRET}@host/locks.db",
    f"redis://127.0.0.1:1/0?password={SECRET}",
    f"redis://[user:{SECRET}@host",
    f"user:{SECRET}@host",
]
COMMANDS = [
    ["run", "x", "-v", "-n", "--", "true"],
    ["ls"],
    ["show", "x", "--json"],
    ["break", "x", "--reason", "test"],
]


@pytest.mark.parametrize("url", URLS)
def test_in_the_variable(command_line: CommandLine, url: str) -> None:
    # At once: where nobody listens, each tries for seconds.
    for process in [command_line.start(*command, env={"HOLDFAST_URL": url}) for command in COMMANDS]:
        process.close_stdin()
        process.wait()
        assert process.returncode in {64, 69}, process.stderr
        assert SECRET not in process.stdout + process.stderr
        assert process.stderr.strip(), "silent"


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls", "--url", URLS[0]],
        ["ls", f"--url={URLS[2]}"],
        ["ls", "--namespace", "x", URLS[0], URLS[0]],
        ["show", "x", URLS[0]],
        [URLS[0]],
        [f"--ulr={URLS[0]}", "ls"],
        ["run", "x", "--ttl", URLS[0], "--", "true"],
    ],
)
def test_on_the_command_line(command_line: CommandLine, arguments: list[str]) -> None:
    process = command_line.finish(*arguments, env={"HOLDFAST_URL": None})
    assert process.returncode in {64, 69}, process.stderr
    assert SECRET not in process.stdout + process.stderr


def test_help_does_not_show_the_variable(command_line: CommandLine) -> None:
    for command in ([], ["run"], ["ls"], ["guarantees"]):
        said = command_line.start(*command, "--help", env={"HOLDFAST_URL": URLS[0]}).succeed()
        assert SECRET not in said


def test_the_command_itself_gets_the_whole_url(command_line: CommandLine) -> None:
    """It needs it to connect; an environment is private to its user."""
    url = f"{command_line.url}"
    process = command_line.start("run", "x", "--", "sh", "-c", 'printf %s "$HOLDFAST_URL"')
    assert process.succeed().strip() == url


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("at redis://u:pw@h:1/0 failed", f"at redis://u:{MASK}@h:1/0 failed"),
        ("redis://:pw@h", f"redis://:{MASK}@h"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://u@h", "redis://u@h"),
        ("redlock://:a@h:1,:b@h:2", f"redlock://:{MASK}@h:2"),
        ("etcd://h?password=pw&x=1", f"etcd://h?password={MASK}&x=1"),
        ("mail me@example.org at 10:30", "mail me@example.org at 10:30"),
    ],
)
def test_what_is_scrubbed(text: str, clean: str) -> None:
    assert scrub(text) == clean


def test_a_learnt_secret_is_scrubbed_on_its_own_and_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.redaction._learnt", set())
    learn(["redis://u:p%40ss+word@h/0", "redlock://:first@a:1,:second@b:2/"])
    said = "auth p@ss+word p%40ss+word first second"
    assert scrub(said) == f"auth {MASK} {MASK} {MASK} {MASK}"
