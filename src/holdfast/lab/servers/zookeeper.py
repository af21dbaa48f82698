"""ZooKeeper: one server, or an ensemble.

Digest authentication needs nothing here: a client adds its ``name:password`` and protects nodes by ACL.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from .errors import ProgramMissing, ServerFailed
from .group import Group
from .server import Server, find_program

__all__ = ["ZooKeeper", "ZooKeeperEnsemble"]

ASK_SECONDS: Final = 5.0
PING_SECONDS: Final = 0.2
JAR: Final = Path("/usr/share/java/zookeeper.jar")
"""The jar whose manifest names the other jars."""
LOGGER: Final = Path("/usr/share/java/slf4j-simple.jar")
"""The logging library: without it ZooKeeper would end without a message. The same package has it."""

JVM_OPTIONS: Final = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.forceSync=no",
    # During an election a member polls the others ever more rarely, up to once a minute: too slow for tests.
    "-Dzookeeper.fastleader.maxNotificationInterval=1000",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)
"""Small and quick to start. No wait for the disk: a process that ends loses no written data."""


class ZooKeeper(Server):
    """``QuorumPeerMain``, alone unless ``ZooKeeperEnsemble`` makes it one of several.

    ``settings`` are lines of its configuration: ``{"maxSessionTimeout": "60000"}``.
    """

    kind = "zookeeper"

    def __init__(
        self,
        *,
        number: int = 1,
        tick_ms: int = 500,
        faketime: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(faketime=faketime)
        self.number = number
        self._tick_ms = tick_ms
        self._settings = dict(settings or {})
        self.peers: Sequence[ZooKeeper] = ()
        """All members of its ensemble, itself included; none if it stands alone."""

    def four_letters(self, word: str, timeout: float = ASK_SECONDS) -> str:
        """Send one of its four-letter words: ``ruok``, ``srvr``, ``cons``, ``wchp``. Returns the reply."""
        with socket.create_connection((self.host, self.port), timeout) as connection:
            connection.sendall(word.encode())
            with connection.makefile("rb") as stream:
                return stream.read().decode()

    def mode(self, timeout: float = ASK_SECONDS) -> str:
        """``standalone``, ``leader`` or ``follower``; empty while it does not serve."""
        lines = self.four_letters("srvr", timeout).splitlines()
        return next((line.removeprefix("Mode: ") for line in lines if line.startswith("Mode: ")), "")

    # --- hooks of the base class

    def prepare(self) -> None:
        lines = {
            "tickTime": str(self._tick_ms),
            "minSessionTimeout": str(2 * self._tick_ms),
            "initLimit": "40",
            "syncLimit": "20",
            "dataDir": str(self.data),
            "clientPort": str(self.port),
            "clientPortAddress": self.host,
            "maxClientCnxns": "0",
            "4lw.commands.whitelist": "*",
            **{f"server.{peer.number}": peer.quorum_address for peer in self.peers},
            **self._settings,
        }
        text = "".join(f"{name}={value}\n" for name, value in lines.items())
        self._configuration.write_text(text)
        if self.peers:
            (self.data / "myid").write_text(f"{self.number}\n")

    def command_line(self) -> list[str]:
        if not JAR.exists():
            raise ProgramMissing("ZooKeeper", "libzookeeper-java")
        java = find_program("java", "default-jre-headless")
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return [java, *JVM_OPTIONS, "-cp", f"{JAR}:{LOGGER}", main, str(self._configuration)]

    def ping(self) -> bool:
        # While it starts, it may accept a request and never answer it.
        return bool(self.mode(PING_SECONDS))

    @property
    def quorum_address(self) -> str:
        return f"{self.host}:{self.ports['quorum']}:{self.ports['election']}"

    @property
    def _configuration(self) -> Path:
        return self.folder / "zoo.cfg"


class _Member(ZooKeeper):
    """A member of an ensemble. It listens on its quorum port only while it is the leader."""

    port_names = ("client", "election", "quorum")
    always_open = ("client", "election")


class ZooKeeperEnsemble(Group[ZooKeeper]):
    """Members that elect a leader."""

    def __init__(
        self, size: int = 3, *, tick_ms: int = 500, settings: Mapping[str, str] | None = None
    ) -> None:
        members = [
            _Member(number=number, tick_ms=tick_ms, settings=settings) for number in range(1, size + 1)
        ]
        for member in members:
            member.peers = members
        super().__init__(members)

    def leader(self) -> ZooKeeper:
        """The current leader."""
        for member in self.members:
            if member.running and member.mode() == "leader":
                return member
        raise ServerFailed("no member leads at the moment")
