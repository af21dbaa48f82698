"""One temporary server: a program in the foreground, with its own folder and ports.

A subclass says what to write before the start, which command line to run, and how to check that the server is
ready. Starting, stopping, killing, pausing and cleaning up are here.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from .errors import PortTaken, ProgramMissing, ServerFailed
from .faketime import FakeClock
from .ports import HOST, free_port, listeners
from .processes import Member, family, launch, signal_all, stand_still, wait_until_gone
from .waiting import POLL_SECONDS

__all__ = ["Server", "find_program", "make_template"]

READY_SECONDS: Final = 60.0
"""How long a server may take until it is ready. It is polled, so a long time only delays the error."""

STOP_SECONDS: Final = 10.0
PORT_ATTEMPTS: Final = 10
LOG_SHOWN: Final = 3000
NOT_FOUND_BY_PATH: Final = ("/usr/sbin", "/sbin", "/usr/local/sbin")


class Server(ABC):
    """A server of one process (with its children), from its first start to the end of its folder."""

    kind: ClassVar[str]
    """For the folder's name and for messages."""
    port_names: ClassVar[tuple[str, ...]] = ("client",)
    """The purposes of its ports. Clients use the first."""
    always_open: ClassVar[tuple[str, ...] | None] = None
    """The ports on which it listens whenever it is ready; None: all."""
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    host = HOST

    def __init__(self, *, faketime: bool = False) -> None:
        self.ports: dict[str, int] = {}
        self._faketime = faketime
        self._clock: FakeClock | None = None
        self._initialised = False
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._log_start = 0
        self._owner = os.getpid()

    # --- hooks for subclasses

    @abstractmethod
    def command_line(self) -> list[str]:
        """The program and its arguments, in the foreground."""

    @abstractmethod
    def ping(self) -> bool:
        """Whether the server is ready. OSError counts as no."""

    def prepare(self) -> None:  # noqa: B027 - a hook
        """Write the files that it reads at its start, unless they exist. The ports are known."""

    def initialise(self) -> None:  # noqa: B027 - a hook
        """Set it up. Called once, when it answers for the first time."""

    def user(self) -> str | None:
        """The user that runs it; None: the user of this process."""
        return None

    # --- address and files

    @property
    def port(self) -> int:
        return self.ports[self.port_names[0]]

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def folder(self) -> Path:
        """Its folder, for everything that it reads and writes. Only its user has access."""
        if self._folder is None:
            raise ServerFailed(f"{self.kind} has not been started")
        return self._folder

    @property
    def data(self) -> Path:
        """The data that it keeps from one start to the next."""
        return self.folder / "data"

    @property
    def log(self) -> str:
        """Its whole output, of all its starts."""
        return self._log_path.read_text(errors="replace")

    @property
    def _log_path(self) -> Path:
        return self.folder / "log"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerFailed(f"{self.kind} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def answers(self) -> bool:
        """Whether it runs and is ready."""
        try:
            return self.running and self.ping()
        except OSError:
            return False

    # --- start and end

    def start(self) -> Self:
        """Start it, and return when it is ready. Ports are chosen at the first start, and used again
        later."""
        if self.running:
            return self
        first = not self.ports
        for attempt in range(PORT_ATTEMPTS):
            if first:
                self.ports = {name: free_port() for name in self.port_names}
            try:
                self.spawn()
                self.wait_ready()
            except PortTaken:
                self.kill()
                if not first or attempt == PORT_ATTEMPTS - 1:
                    raise
                self._remove_folder()  # its files contain the port
            except BaseException:
                self.kill()
                if first:
                    self.close()
                raise
            else:
                return self
        raise AssertionError("the last attempt returns or raises")

    def spawn(self) -> None:
        """Start it without waiting until it is ready, for the members of a group."""
        self._make_folder()
        if self._faketime and self._clock is None:
            self._clock = FakeClock(self.folder / "faketime")
        self.prepare()
        with self._log_path.open("ab") as log:
            self._log_start = log.tell()
            self._process = launch(
                self.command_line(),
                log=log,
                folder=self.folder,
                environment={**os.environ, **(self._clock.environment() if self._clock else {})},
                user=self.user(),
            )

    def wait_ready(self, timeout: float = READY_SECONDS) -> None:
        """Wait until it listens on all its ports and is ready."""
        deadline = time.monotonic() + timeout
        while not self._is_ready():
            if not self.running:
                raise self._failure("ended before it was ready")
            if time.monotonic() > deadline:
                raise self._failure(f"was not ready within {timeout} s")
            time.sleep(POLL_SECONDS)
        if not self._initialised:
            self.initialise()
            self._initialised = True

    def stop(self) -> None:
        """Terminate it, and kill it if that fails. Folder and ports remain for another ``start``."""
        if self._process is None:
            return
        self.resume()
        members = family(self._process.pid) if self.running else []
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._reap(members)

    def kill(self) -> None:
        """Send SIGKILL to it and all its descendants, and wait until they have ended.

        All are stopped first, so that no process reacts to the death of another: as in a power failure.
        """
        if self._process is None:
            return
        members = stand_still(self._process.pid) if self.running else []
        signal_all(members, signal.SIGKILL)
        self._reap(members)

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and does nothing. Returns when it is stopped."""
        if not self.running:
            raise ServerFailed(f"{self.kind} is not running")
        stand_still(self.pid)
        self._paused = True

    def resume(self) -> None:
        """SIGCONT."""
        if self._paused and self.running:
            signal_all(family(self.pid), signal.SIGCONT)
        self._paused = False

    def restart(self, keep_data: bool = True, *, kill: bool = False) -> None:
        """Stop (or ``kill``) it and start it again on the same ports, with or without its data."""
        if kill:
            self.kill()
        else:
            self.stop()
        if not keep_data:
            self.forget()
        self.start()

    def forget(self) -> None:
        """Remove its data, as if its disk had been lost. It must not be running."""
        shutil.rmtree(self.data)
        self._initialised = False

    def shift_clock(self, seconds: float) -> None:
        """Set the offset of its wall clock to the machine's clock. Needs ``faketime=True``."""
        if self._clock is None:
            raise ServerFailed(f"start this {self.kind} with faketime=True to shift its clock")
        self._clock.set_offset(seconds)

    def close(self) -> None:
        """Stop it and remove its folder. May be called more than once; in a forked child it does nothing."""
        if os.getpid() != self._owner:
            return
        self.stop()
        _open_servers.discard(self)
        self._remove_folder()
        self.ports = {}

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._folder is not None:
            error.add_note(f"{self!r} wrote:\n{self.log[-LOG_SHOWN:]}")
        self.close()

    def __repr__(self) -> str:
        state = "running" if self.running else "stopped"
        return f"<{type(self).__name__} {self.host}:{self.ports.get(self.port_names[0], '?')} {state}>"

    # --- internals

    def _make_folder(self) -> None:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"holdfast-{self.kind}-"))
            _open_servers.add(self)
            self._own(self._folder)
        self.data.mkdir(mode=0o700, exist_ok=True)
        self._own(self.data)

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = self._clock = None
            self._initialised = False

    def _own(self, path: Path) -> None:
        """Give a file to the user that runs the server."""
        user = self.user()
        if user is not None:
            shutil.chown(path, user, user)

    def _is_ready(self) -> bool:
        pids = [member.pid for member in family(self.pid)]
        found = {name: listeners(pids, port) for name, port in self.ports.items()}
        if any(each.others for each in found.values()):
            raise PortTaken(f"another process listens on one of the ports of {self.kind}: {self.ports}")
        if not all(found[name].we for name in self.always_open or self.port_names):
            return False
        return self.answers()

    def _failure(self, complaint: str) -> ServerFailed:
        printed = self._log_path.read_bytes()[self._log_start :].decode(errors="replace")
        kind = PortTaken if "address already in use" in printed.lower() else ServerFailed
        return kind(f"{self.kind} on {self.address} {complaint}. It wrote:\n{printed[-LOG_SHOWN:]}")

    def _reap(self, members: list[Member]) -> None:
        if self._process is not None:
            self._process.wait(STOP_SECONDS)
            signal_all(members, signal.SIGKILL)
            wait_until_gone(members)
        self._process = None
        self._paused = False


def make_template(kind: str, user: str | None, command_line: Callable[[Path], list[str]]) -> Path:
    """A folder with new data, as a program of the server makes it; gone with this process."""
    folder = Path(tempfile.mkdtemp(prefix=f"holdfast-{kind}-template-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if user is not None:
        shutil.chown(folder, user, user)
    command = command_line(folder)
    made = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        user=user,
        group=user,
        extra_groups=[] if user is not None else None,
        check=False,
    )
    if made.returncode != 0:
        raise ServerFailed(f"{Path(command[0]).name}: {made.stdout}{made.stderr}")
    return folder


def find_program(name: str, package: str | None) -> str:
    """The path of a program, also in the folders for administrators, which may not be in PATH."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *NOT_FOUND_BY_PATH])
    found = shutil.which(name, path=path)
    if found is None:
        raise ProgramMissing(name, package)
    return found


_open_servers: set[Server] = set()


@atexit.register
def _close_all() -> None:
    """Close the servers that were left open."""
    for server in list(_open_servers):
        server.close()
