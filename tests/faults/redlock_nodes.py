"""Five real nodes that may be harmed, each behind a proxy, and what stands on each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from holdfast.engines.redlock.keys import MARK_KEY, Keyspace
from holdfast.engines.redlock.scripts import load
from holdfast.lab.proxy import Proxy
from holdfast.lab.servers import Redis
from holdfast.lab.servers.group import Group

__all__ = ["HARM", "Nodes", "nodes"]


class Nodes:
    """The servers, the proxies before them, and a URL that leads through these."""

    def __init__(self, servers: Sequence[Redis], proxies: Sequence[Proxy]) -> None:
        self.servers = servers
        self.proxies = proxies

    @property
    def size(self) -> int:
        return len(self.servers)

    def url(self, **options: object) -> str:
        """Patient with nodes: a test that waits for one that is harmed would be seen to wait."""
        given = {"node_timeout": "2s", **options}
        query = "&".join(f"{name}={value}" for name, value in given.items())
        return f"redlock://{','.join(proxy.address for proxy in self.proxies)}?{query}"

    def claims(self, name: str = "x", namespace: str = "holdfast") -> list[str]:
        """On each node that runs, the owner of its claim; empty: nobody has one there."""
        return [
            self._claim(server, Keyspace(namespace).key_of(name)) for server in self.servers if server.running
        ]

    def fences(self, name: str = "x", namespace: str = "holdfast") -> list[int]:
        """On each node the largest number that it issued; 0: it knows of none."""
        views = [self._view(server, Keyspace(namespace).key_of(name)) for server in self.servers]
        return [int(view[2]) if view else 0 for view in views]

    def _claim(self, server: Redis, key: bytes) -> str:
        view = self._view(server, key)
        return view[3][0].decode() if view and view[3] else ""

    def _view(self, server: Redis, key: bytes) -> Any:
        ready = server.command("HGET", MARK_KEY, "ready")
        if ready is None:
            return None
        return server.command("EVAL", load()["inspect"].source, "2", key, MARK_KEY, ready)

    def evaluated(self, number: int) -> int:
        """How many scripts clients had this node run."""
        told = self.servers[number].info("commandstats").get("cmdstat_evalsha", "calls=0,")
        return int(told.partition("=")[2].partition(",")[0])

    def mend(self) -> None:
        """As they were when they were started: all run, at the right time, with nothing in them."""
        for server, proxy in zip(self.servers, self.proxies, strict=True):
            proxy.pass_on()
            proxy.cut()
            server.resume()
            server.start()
            server.shift_clock(0.0)
            server.command("FLUSHALL")

    def marks(self) -> list[bytes | None]:
        return [server.command("HGET", MARK_KEY, "ready") for server in self.servers]


@contextmanager
def nodes(count: int = 5, *, faketime: bool = False, remembers: bool = True) -> Iterator[Nodes]:
    persistence = "aof-always" if remembers else "none"
    servers = Group([Redis(persistence=persistence, faketime=faketime) for _ in range(count)])  # type: ignore[arg-type]  # one of the literals
    with servers, ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(each.host, each.port)) for each in servers.members]
        yield Nodes(servers.members, proxies)


Harm = Callable[[Redis, Proxy], None]


def _kill(server: Redis, proxy: Proxy) -> None:
    server.kill()


def _stop(server: Redis, proxy: Proxy) -> None:
    server.pause()


def _slow(server: Redis, proxy: Proxy) -> None:
    proxy.delay(to_server=1.5, to_client=1.5)


def _cut(server: Redis, proxy: Proxy) -> None:
    """Nothing comes through, and no client gets an error."""
    proxy.hold()


HARM: Final[dict[str, Harm]] = {"killed": _kill, "stopped": _stop, "slow": _slow, "cut": _cut}
