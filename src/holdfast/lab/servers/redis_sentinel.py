"""A Redis master with replicas, and Sentinels that fail over to a replica."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Final, Self

from .errors import ServerFailed
from .redis import PROGRAM, Redis, quoted
from .resp import ReplyError
from .waiting import until

__all__ = ["RedisSentinel", "SentinelProcess"]

SETTLE_SECONDS: Final = 60.0

PACE: Final = {"info-period": 500, "publish-period": 200, "ping-period": 500, "ask-period": 200}
"""In milliseconds. With the default, Sentinels take seconds to find each other and the replicas.

A replica can be promoted if it answered within the last five ping periods, and while the master is down it is
pinged once a second. With a much shorter period mostly no replica qualifies.
"""


class SentinelProcess(Redis):
    """``redis-server --sentinel``. It rewrites its configuration as it learns.

    It speaks TLS, and is the program, as its master does and is; ``password`` and ``acl`` are its own.
    """

    kind = "redis-sentinel"

    def __init__(
        self,
        master: Redis,
        *,
        service: str,
        quorum: int,
        down_after_ms: int,
        failover_timeout_ms: int,
        password: str | None = None,
        acl: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            password=password, acl=acl, tls=master.tls, certificates_of=master, program=master.program
        )
        self._master = master
        self._service = service
        self._quorum = quorum
        self._down_after_ms = down_after_ms
        self._failover_timeout_ms = failover_timeout_ms

    def command_line(self) -> list[str]:
        return [*super().command_line(), "--sentinel"]

    def wait_ready(self, timeout: float = SETTLE_SECONDS) -> None:
        super().wait_ready(timeout)
        with contextlib.suppress(ReplyError):  # before Redis 7 the period cannot be changed
            self.command("SENTINEL", "DEBUG", *[word for pair in PACE.items() for word in pair])

    def state(self) -> dict[str, str]:
        """Its state of the master: ``num-slaves``, ``flags``, …"""
        words = [word.decode() for word in self.command("SENTINEL", "MASTER", self._service)]
        return dict(zip(words[::2], words[1::2], strict=True))

    def _lines(self) -> Iterator[str]:
        yield f"bind {self.host}"
        yield f"dir {quoted(str(self.data))}"
        yield from self._listening()
        if self.password is not None:
            yield f"requirepass {quoted(self.password)}"
            yield f"sentinel sentinel-pass {quoted(self.password)}"  # the password of its peers
        for user, rules in self._acl.items():
            yield f"user {user} {rules}"
        name = self._service
        yield f"sentinel monitor {name} {self._master.host} {self._master.port} {self._quorum}"
        yield f"sentinel down-after-milliseconds {name} {self._down_after_ms}"
        yield f"sentinel failover-timeout {name} {self._failover_timeout_ms}"
        if self._master.password is not None:
            yield f"sentinel auth-pass {name} {quoted(self._master.password)}"


class RedisSentinel:
    """Redis nodes, the first of which is the master at the beginning, and their Sentinels."""

    def __init__(
        self,
        *,
        replicas: int = 1,
        sentinels: int = 3,
        service: str = "mymaster",
        password: str | None = None,
        tls: bool = False,
        sentinel_password: str | None = None,
        sentinel_acl: Mapping[str, str] | None = None,
        down_after_ms: int = 1000,
        failover_timeout_ms: int = 3000,
        settings: Mapping[str, str] | None = None,
        program: str = PROGRAM,
    ) -> None:
        self.service = service

        def node(master: Redis | None) -> Redis:
            return Redis(password=password, tls=tls, settings=settings, replica_of=master, program=program)

        first = node(None)
        self.nodes = (first, *(node(first) for _ in range(replicas)))
        self.sentinels = tuple(
            SentinelProcess(
                first,
                service=service,
                quorum=sentinels // 2 + 1,
                down_after_ms=down_after_ms,
                failover_timeout_ms=failover_timeout_ms,
                password=sentinel_password,
                acl=sentinel_acl,
            )
            for _ in range(sentinels)
        )

    @property
    def addresses(self) -> str:
        """``host:port,host:port`` of the Sentinels, for a URL."""
        return ",".join(sentinel.address for sentinel in self.sentinels)

    # --- the master

    def master(self) -> Redis:
        """The current master, according to the Sentinels."""
        for sentinel in self.sentinels:
            if sentinel.answers():
                _, port = sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)
                return next(node for node in self.nodes if node.port == int(port))
        raise ServerFailed("no Sentinel answers")

    def failover(self) -> Redis:
        """Let the Sentinels replace a healthy master. Returns the new one when all of them name it."""
        old = self.master()
        self.sentinels[0].command("SENTINEL", "FAILOVER", self.service)
        return self.wait_for_another(old)

    def wait_for_another(self, old: Redis) -> Redis:
        """Wait until another node is the master and reports that role. Returns it."""

        def another() -> Redis | None:
            now = {self._named_by(sentinel) for sentinel in self.sentinels if sentinel.answers()}
            found = [node for node in self.nodes if now == {node.port} and node is not old]
            return found[0] if found and found[0].is_replica() is False else None

        return until(another, "no other master", SETTLE_SECONDS)

    def _named_by(self, sentinel: SentinelProcess) -> int:
        return int(sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)[1])

    # --- start and end

    def start(self) -> Self:
        try:
            for node in self.nodes:
                node.start()
            until(self._replicas_follow, "the replicas do not follow", SETTLE_SECONDS)
            for sentinel in self.sentinels:
                sentinel.start()
            until(self._all_known, "the Sentinels do not find each other", SETTLE_SECONDS)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        for server in (*self.sentinels, *reversed(self.nodes)):
            server.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _replicas_follow(self) -> bool:
        # Sentinels ask the master for its replicas when they start, and then not again for long.
        followers = [node.info("replication") for node in self.nodes[1:]]
        return all(info["master_link_status"] == "up" for info in followers) and self.nodes[0].info(
            "replication"
        )["connected_slaves"] == str(len(followers))

    def _all_known(self) -> bool:
        known = (str(len(self.nodes) - 1), str(len(self.sentinels) - 1))
        states = [sentinel.state() for sentinel in self.sentinels]
        return all((each["num-slaves"], each["num-other-sentinels"]) == known for each in states)

    def __repr__(self) -> str:
        return f"<RedisSentinel {self.service} {self.addresses}>"
