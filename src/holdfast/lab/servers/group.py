"""Servers that become ready together: a cluster, an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from .errors import PortTaken
from .ports import free_port
from .server import Server

__all__ = ["Group"]

GROUP_ATTEMPTS: Final = 5

S = TypeVar("S", bound=Server)


class Group(Generic[S]):
    """Members that know each other's ports before the first of them starts."""

    def __init__(self, members: Sequence[S]) -> None:
        self.members = tuple(members)
        self._formed = False

    def form(self) -> None:
        """Form the group, when all members answer for the first time."""

    def settle(self) -> None:
        """Wait until the group works, if that needs more than that each member answers."""

    @property
    def addresses(self) -> str:
        """``host:port,host:port`` for a URL."""
        return ",".join(member.address for member in self.members)

    def start(self) -> Self:
        """Start the members that do not run. Returns when the group is ready."""
        first = not self.members[0].ports
        for attempt in range(GROUP_ATTEMPTS):
            if first:
                for member in self.members:
                    member.ports = {name: free_port() for name in member.port_names}
            try:
                self._start_all()
                if not self._formed:
                    self.form()
                    self._formed = True
                self.settle()
            except PortTaken:
                self.close()
                if not first or attempt == GROUP_ATTEMPTS - 1:
                    raise
            except BaseException:
                self.close()
                raise
            else:
                return self
        raise AssertionError("the last attempt returns or raises")

    def stop(self) -> None:
        """Stop all members. They can be started again."""
        self._each(lambda member: member.stop())

    def kill(self) -> None:
        self._each(lambda member: member.kill())

    def restart(self, keep_data: bool = True, *, kill: bool = False) -> None:
        """Restart all members at once, on the same ports."""
        if kill:
            self.kill()
        else:
            self.stop()
        if not keep_data:
            self._each(lambda member: member.forget())
            self._formed = False
        self.start()

    def close(self) -> None:
        """Stop all members and remove their folders."""
        self._formed = False
        self._each(lambda member: member.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(map(repr, self.members))}>"

    def _start_all(self) -> None:
        starting = [member for member in self.members if not member.running]
        for member in starting:
            member.spawn()
        for member in starting:
            member.wait_ready()

    def _each(self, act: Callable[[S], None]) -> None:
        for member in self.members:
            act(member)
