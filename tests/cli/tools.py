"""What the tests of the command line share: starting it, and looking at processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from support import Process, run_python, wait_until

LONG_TTL = "60"
"""Far longer than any test: what happens sooner did not happen because a lease ran out."""

TERMINAL = """
import os, pty, select, sys, termios
pid, terminal = pty.fork()
if pid == 0:
    # Without echo, what comes out is what programs print.
    settings = termios.tcgetattr(0)
    settings[3] &= ~termios.ECHO
    termios.tcsetattr(0, termios.TCSANOW, settings)
    os.execvp(sys.argv[1], sys.argv[1:])
print("leader", pid, flush=True)
inputs = [0, terminal]
while terminal in inputs:
    for ready in select.select(inputs, [], [])[0]:
        try:
            data = os.read(ready, 4096)
        except OSError:
            data = b""
        if not data:
            inputs.remove(ready)
        elif ready == 0:
            # A line with a caret is a key: ^C, ^Z. Other lines are typed as they are.
            os.write(terminal, bytes([ord(data[1:2]) & 31]) if data[:1] == b"^" else data)
        else:
            os.write(1, data.replace(b"\\r", b""))
print()
print("status", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class CommandLine:
    """Starts ``holdfast`` on one engine; whatever it started is gone at the end of the test."""

    def __init__(self, url: str, stack: ExitStack) -> None:
        self.url = url
        self._stack = stack

    def start(self, *arguments: str, env: Mapping[str, str | None] | None = None) -> Process:
        """Start ``holdfast ARGUMENTS``."""
        environment = {"HOLDFAST_URL": self.url, **(env or {})}
        return self._stack.enter_context(
            run_python(None, *arguments, module="holdfast", env=environment, options=("-W", "error"))
        )

    def finish(self, *arguments: str, env: Mapping[str, str | None] | None = None) -> Process:
        """Run ``holdfast ARGUMENTS`` to its end, with nothing on its standard input."""
        process = self.start(*arguments, env=env)
        process.close_stdin()
        process.wait()
        return process

    def script(self, code: str, *arguments: str, env: Mapping[str, str | None] | None = None) -> Process:
        """Start another Python program on the same engine."""
        environment = {"HOLDFAST_URL": self.url, **(env or {})}
        return self._stack.enter_context(run_python(code, *arguments, env=environment))

    def program(self, *arguments: str) -> Process:
        """Start any program, with the engine in its environment."""
        environment = {**os.environ, "HOLDFAST_URL": self.url}
        return self._stack.enter_context(Process(arguments, env=environment))


def at_a_terminal(command_line: CommandLine, *command: str) -> Process:
    """Start a program as the leader of a session with a terminal of its own; ``send`` types."""
    process = command_line.script(TERMINAL, *command)
    process.expect("leader")
    return process


def state_of(pid: int) -> str:
    """The scheduler's letter for a process; ``X`` when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def is_alive(pid: int) -> bool:
    """It runs or could; a zombie does not count, as who buries it is not ours to say."""
    return state_of(pid) not in "XZ"


def wait_until_dead(*pids: int) -> None:
    for pid in pids:
        wait_until(lambda pid=pid: not is_alive(pid), message=f"process {pid} lives on")  # type: ignore[misc]  # mypy cannot type a lambda with a default
