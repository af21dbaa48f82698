"""Real child Python processes with line-based handshakes.

A test about processes needs to know where the child is. The child prints a line when it got
somewhere and reads a line when it should go on:

    with run_python('''
        import holdfast
        lease = holdfast.connect().lock("x").acquire()
        print("held", lease.token, flush=True)
        input()
    ''', env={"HOLDFAST_URL": url}) as child:
        token = int(child.expect("held"))
        child.kill()

However the test ends, the child and everything it started are gone afterwards: it leads a process
group of its own, which is killed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from .waiting import TimedOut, wait_until

DEFAULT_TIMEOUT = 20.0
"""Seconds to wait for a line or an exit. Starting Python on a loaded machine takes its time."""


class ProcessEnded(AssertionError):
    """The child ended before it printed what the test waited for."""


class Process:
    """A child process: its lines out, its lines in, its signals, its end.

    Lines are read as they come by two threads of ours, so that a child never blocks on a full pipe
    and a failed test can show all the child said.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self._child = subprocess.Popen(
            list(arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=dict(env) if env is not None else None,
            cwd=cwd,
            start_new_session=True,
        )
        if self._child.stdin is None or self._child.stdout is None or self._child.stderr is None:
            raise AssertionError("the pipes asked for are not there")
        self._stdin = self._child.stdin
        self.stdout_lines: list[str] = []
        """Every line printed so far, without its end."""
        self.stderr_lines: list[str] = []
        self._unread: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._readers = [
            self._start_reader(self._child.stdout, self.stdout_lines, self._unread),
            self._start_reader(self._child.stderr, self.stderr_lines, None),
        ]

    # Its output and input

    def expect(self, prefix: str = "", timeout: float = DEFAULT_TIMEOUT) -> str:
        """Wait for the next line that starts with ``prefix``; return the rest of it, stripped.

        Lines before it that do not start so are passed over (they remain in ``stdout_lines``).
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                line = self._unread.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimedOut(f"no line starting with {prefix!r} within {timeout} s{self._said()}") from None
            if line is None:
                self._unread.put(None)  # The next call finds the end, too.
                self.wait(timeout=DEFAULT_TIMEOUT)
                raise ProcessEnded(f"ended before a line starting with {prefix!r}{self._said()}")
            if line.startswith(prefix):
                return line[len(prefix) :].strip()

    def send(self, line: str = "") -> None:
        """Write one line to the child's standard input."""
        self._stdin.write(line + "\n")
        self._stdin.flush()

    def close_stdin(self) -> None:
        """Let the child read its end of input."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    @property
    def stdout(self) -> str:
        return "".join(line + "\n" for line in self.stdout_lines)

    @property
    def stderr(self) -> str:
        return "".join(line + "\n" for line in self.stderr_lines)

    # Its life

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal as in ``subprocess``; None while it runs."""
        return self._child.poll()

    @property
    def running(self) -> bool:
        return self.returncode is None

    def wait(self, timeout: float = DEFAULT_TIMEOUT) -> int:
        """Wait for its end; return the exit status. All it printed is in ``stdout_lines`` then."""
        try:
            status = self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            raise TimedOut(f"still running after {timeout} s{self._said()}") from None
        for reader in self._readers:
            # A grandchild may hold the pipe open for longer than the child lived.
            reader.join(timeout=1.0)
        return status

    def succeed(self, timeout: float = DEFAULT_TIMEOUT) -> str:
        """Wait for its end, which must be exit status 0; return all it printed."""
        status = self.wait(timeout)
        if status != 0:
            raise AssertionError(f"exit status {status}{self._said()}")
        return self.stdout

    # Signals

    def signal(self, number: int) -> None:
        """Send a signal to the child alone."""
        self._child.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the child and everything it started, as a terminal does."""
        os.killpg(self.pid, number)

    def stop(self) -> None:
        """SIGSTOP, and wait until it really stands still."""
        self.signal(signal.SIGSTOP)
        if sys.platform == "linux":
            wait_until(lambda: _state(self.pid) in "Tt", message=f"process {self.pid} did not stop")

    def cont(self) -> None:
        """SIGCONT."""
        self.signal(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM."""
        self.signal(signal.SIGTERM)

    def interrupt(self) -> None:
        """SIGINT, as Ctrl-C sends it."""
        self.signal(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL to the child alone, and wait until it is gone. What it forked lives on."""
        self._child.kill()
        self._child.wait(DEFAULT_TIMEOUT)

    def cleanup(self) -> None:
        """Kill the whole process group and close the pipes. May be called more than once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._child.wait(DEFAULT_TIMEOUT)
        self.close_stdin()
        for reader in self._readers:
            reader.join(timeout=5.0)
        for pipe, reader in zip((self._child.stdout, self._child.stderr), self._readers, strict=True):
            if pipe is not None and not reader.is_alive():
                pipe.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cleanup()
        if error is not None and self.stderr_lines:
            error.add_note(f"process {self.pid} wrote to stderr:\n{textwrap.indent(self.stderr, '    ')}")

    def __repr__(self) -> str:
        return f"<Process {self.pid} {'running' if self.running else self.returncode}>"

    @staticmethod
    def _start_reader(
        pipe: IO[str], lines: list[str], unread: queue.SimpleQueue[str | None] | None
    ) -> threading.Thread:
        def read() -> None:
            for raw in pipe:
                line = raw.rstrip("\n")
                lines.append(line)
                if unread is not None:
                    unread.put(line)
            if unread is not None:
                unread.put(None)

        reader = threading.Thread(target=read, name="child-output", daemon=True)
        reader.start()
        return reader

    def _said(self) -> str:
        return (
            f"\n{self!r} printed:\n{textwrap.indent(self.stdout, '    ')}"
            f"and wrote to stderr:\n{textwrap.indent(self.stderr, '    ')}"
        )


def run_python(
    code: str | None = None,
    *arguments: str,
    module: str | None = None,
    script: str | os.PathLike[str] | None = None,
    env: Mapping[str, str | None] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
) -> Process:
    """Start this Python on ``code`` (dedented, so it may be indented in the test), a module, or a script.

    ``env`` is laid over the environment of the test; None removes a name. ``options`` go to the
    interpreter itself, for example ``("-X", "dev")``. Use it in a ``with``, so that it is cleaned up.
    """
    chosen: list[str]
    if [code is not None, module is not None, script is not None].count(True) != 1:
        raise TypeError("give exactly one of code, module= and script=")
    if code is not None:
        chosen = ["-c", textwrap.dedent(code)]
    elif module is not None:
        chosen = ["-m", module]
    else:
        chosen = [os.fspath(script)] if script is not None else []
    return Process(
        [sys.executable, *options, *chosen, *arguments],
        env=python_environment(env),
        cwd=cwd,
    )


def python_environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """The environment for a child Python: unbuffered and in UTF-8, with ``changes`` laid over it.

    The tests' folder is on its path, so that children can import ``support`` too.
    """
    environment = dict(os.environ)
    environment["PYTHONUNBUFFERED"] = "1"
    environment["PYTHONUTF8"] = "1"
    tests_folder = str(Path(__file__).resolve().parent.parent)
    inherited = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = tests_folder if not inherited else os.pathsep.join([tests_folder, inherited])
    for name, value in (changes or {}).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


def _state(pid: int) -> str:
    """The scheduler's letter for a process (``T``: stopped), from /proc."""
    # The name in parentheses may hold anything, so the fields are counted from its last parenthesis.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
