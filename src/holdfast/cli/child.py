"""The wrapper's handle on its supervisor, and through it on the command."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from .channel import Channel
from .exits import complain
from .processes import clock, signal_group
from .signals import PASSED_ON

__all__ = ["Child"]


class Child:
    """A supervisor process, which waits for the order to start the command."""

    def __init__(self, supervisor: int, channel: Channel) -> None:
        self._supervisor = supervisor
        self._channel = channel
        self.group: int | None = None
        """The command's process group, while it runs."""

    @classmethod
    def prepare(cls, command: Sequence[str]) -> Child:
        """Fork the supervisor. Called while this process has one thread."""
        ours, theirs = Channel.pair()
        # No signal may reach the supervisor before it has its handlers.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        supervisor = os.fork()
        if supervisor == 0:
            status = 1
            try:
                from .supervisor import Supervisor  # in the child: while it starts, the wrapper gets the lock

                ours.close()
                Supervisor(theirs, command).run(mask)
                status = 0
            except Exception:  # noqa: BLE001 - printed here: the wrapper only sees that the supervisor has ended
                complain(f"internal error in the supervisor\n{traceback.format_exc()}")
            finally:
                # Never return into the caller's frames, nor run its clean-up.
                os._exit(status)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        return cls(supervisor, ours)

    def fileno(self) -> int:
        return self._channel.fileno()

    @property
    def is_gone(self) -> bool:
        """The supervisor has ended: no command can be started any more."""
        return self._channel.closed

    def start(self, environment: Mapping[str, str], seconds: float, foreground: bool) -> None:
        self._channel.send("start", dict(environment), _moment(seconds), foreground)

    def allow(self, seconds: float) -> None:
        """Let the command run for this long from now. After that it is killed."""
        self._channel.send("until", _moment(seconds))

    def signal(self, signum: int) -> None:
        """Signal the command's process group."""
        self._channel.send("signal", int(signum))

    def lost(self) -> None:
        """Send SIGTERM to the command. It is killed at its deadline."""
        self._channel.send("lost")

    def receive(self) -> list[list[Any]]:
        """The supervisor's reports. Its own death is reported as the death of the command."""
        messages = self._channel.receive()
        for kind, *details in messages:
            if kind == "started":
                self.group = details[0]
            elif kind in {"ended", "failed"}:
                self.group = None
        if self._channel.closed:
            if self.group is not None:
                signal_group(self.group, signal.SIGKILL)
            messages.append(["ended", int(signal.SIGKILL)])
        return messages

    def close(self) -> None:
        """End the supervisor. A command that still runs is killed first."""
        self._channel.close()
        if self.group is None:
            # The supervisor has nothing left to do, and might be stopped.
            os.kill(self._supervisor, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._supervisor, 0)


def _moment(seconds: float) -> float | None:
    return None if math.isinf(seconds) else clock() + seconds
