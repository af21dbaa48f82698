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
from .supervisor import Supervisor

__all__ = ["Child"]


class Child:
    """The command to be, waiting in its supervisor for the word to start."""

    def __init__(self, supervisor: int, channel: Channel) -> None:
        self._supervisor = supervisor
        self._channel = channel
        self.group: int | None = None
        """The command's process group, while it runs."""

    @classmethod
    def prepare(cls, command: Sequence[str]) -> Child:
        """Fork the supervisor. To be called while this process has one thread."""
        ours, theirs = Channel.pair()
        # No signal may find the supervisor before it has its handlers.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        supervisor = os.fork()
        if supervisor == 0:
            status = 1
            try:
                ours.close()
                Supervisor(theirs, command).run(mask)
                status = 0
            except Exception:  # noqa: BLE001 - said here, because the wrapper only sees that it is gone
                complain(f"internal error in the supervisor\n{traceback.format_exc()}")
            finally:
                # Never back into the caller's frames, and none of its clean-up.
                os._exit(status)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
        return cls(supervisor, ours)

    def fileno(self) -> int:
        return self._channel.fileno()

    def start(self, environment: Mapping[str, str], seconds: float, foreground: bool) -> None:
        self._channel.send("start", dict(environment), _moment(seconds), foreground)

    def allow(self, seconds: float) -> None:
        """The command may run for this long from now; after that it is killed."""
        self._channel.send("until", _moment(seconds))

    def signal(self, signum: int) -> None:
        """Signal the command's process group."""
        self._channel.send("signal", int(signum))

    def lost(self) -> None:
        """Ask the command to end; it is killed when its time is over."""
        self._channel.send("lost")

    def receive(self) -> list[list[Any]]:
        """What the supervisor reports. Its own death is reported as the death of the command."""
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
        """Dismiss the supervisor; a command that still runs is killed first."""
        self._channel.close()
        if self.group is None:
            # It has nothing left to do, and might be stopped.
            os.kill(self._supervisor, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._supervisor, 0)


def _moment(seconds: float) -> float | None:
    return None if math.isinf(seconds) else clock() + seconds
