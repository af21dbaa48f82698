"""Shell completion: bash is asked itself; the scripts for the others know the same commands and options."""

from __future__ import annotations

import subprocess

import pytest

from cli.tools import CommandLine
from holdfast.cli.app import ROOT
from holdfast.cli.options import Group
from holdfast.cli.parser import load

ASK = """
eval "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_holdfast
printf '%s\\n' "${COMPREPLY[@]}"
"""


def completed(script: str, *words: str) -> list[str]:
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", script, *words], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def script(command_line: CommandLine) -> str:
    return command_line.start("completion", "bash").succeed()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["r"], ["run", "redlock"]),
        (["gu"], ["guarantees"]),
        (["redlock", ""], ["init", "status", "rejoin", "--help"]),
        (["redlock", "rejoin", "--du"], ["--durable"]),
        (["ls", "--a"], ["--all"]),
        (["run", "--ti"], ["--timeout"]),
        (["run", "--timeout", ""], []),
        (["run", "x", "--no-"], ["--no-url"]),
        (["run", "x", "bas"], ["bash"]),
        (["run", "x", "--", "bas"], ["bash"]),
        (["run", "x", "ls", "--al"], []),
        (["completion", "b"], ["bash"]),
    ],
    ids=str,
)
def test_bash(script: str, words: list[str], expected: list[str]) -> None:
    found = completed(script, "holdfast", *words)
    if expected == ["bash"] and words[0] == "run":
        assert "bash" in found
    else:
        assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_option_is_known(command_line: CommandLine, shell: str) -> None:
    text = command_line.start("completion", shell).succeed()
    waiting = list(ROOT.commands.items())
    for name, place in waiting:
        assert name in text
        found = load(place)
        if isinstance(found, Group):
            waiting += found.commands.items()
            continue
        for option in found.options:
            for flag in option.names:
                assert (f" -{'ls'[len(flag) == 2]} {flag.lstrip('-')}" if shell == "fish" else flag) in text


def test_other_shells_are_refused(command_line: CommandLine) -> None:
    process = command_line.finish("completion", "tcsh")
    assert process.returncode == 64
    assert "bash, zsh and fish" in process.stderr
