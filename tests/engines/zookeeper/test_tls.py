"""Servers that speak TLS, and want to see a certificate."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

import holdfast
from engines.zookeeper.conftest import Connect, Hold
from holdfast import EngineUnavailable
from holdfast.lab.servers import ZooKeeper
from holdfast.lab.servers.certificates import Certificates, make_certificates
from holdfast.lab.servers.server import find_program

NETTY = "/usr/share/java/netty-codec.jar"
"""The manifest of ZooKeeper's own jar names all other parts of it."""


class Secure(ZooKeeper):
    """On a second port it speaks TLS."""

    port_names = ("client", "secure")

    @property
    def certificates(self) -> Certificates:
        return make_certificates(self.folder, find_program("openssl", "openssl"))

    @property
    def secure_address(self) -> str:
        return f"{self.host}:{self.ports['secure']}"

    def command_line(self) -> list[str]:
        java, *options = super().command_line()
        at = options.index("-cp") + 1
        options[at] += f":{NETTY}"
        return [java, *options]

    def prepare(self) -> None:
        made = self.certificates
        both = self.folder / "server.pem"
        both.write_text(made.key.read_text() + made.certificate.read_text())
        trusted = self.folder / "authority.pem"
        trusted.write_text(made.authority.read_text())
        self._settings |= {
            "secureClientPort": str(self.ports["secure"]),
            "secureClientPortAddress": self.host,
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": str(both),
            "ssl.trustStore.location": str(trusted),
            "ssl.clientAuth": "need",
        }
        super().prepare()


@pytest.fixture(scope="module")
def server() -> Iterator[Secure]:
    with Secure() as server:
        yield server


def test_locks_over_tls(server: Secure, connect: Connect, hold: Hold) -> None:
    made = server.certificates
    client = connect(
        f"zookeeper://{server.secure_address}", ca=made.authority, cert=made.certificate, key=made.key
    )
    lease = hold(client.lock("x"))
    lease.check()
    lease.set_value(bytes(40_000))
    assert client.inspect("x").value == bytes(40_000), "more than one piece"
    plain = connect(f"zookeeper://{server.address}")
    assert plain.lock("x").acquire(blocking=False) is None


# kazoo leaves a socket whose handshake failed to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_client_that_cannot_show_a_certificate_or_does_not_trust(server: Secure, connect: Connect) -> None:
    made = server.certificates
    url = f"zookeeper://{server.secure_address}"
    for options in ({"ca": made.authority}, {"tls": True, "cert": made.certificate, "key": made.key}):
        with pytest.raises(EngineUnavailable):
            connect(url, io_timeout=0.5, **options).lock("x").acquire()
    gc.collect()


def test_a_file_that_is_not_there_is_said(connect: Connect, tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"nothing\.pem"):
        connect("zookeeper://localhost", ca=tmp_path / "nothing.pem").lock("x").acquire()


def test_a_live_client_brings_its_certificates(server: Secure, namespace: str) -> None:
    made = server.certificates
    live = KazooClient(
        server.secure_address, use_ssl=True, ca=str(made.authority), certfile=str(made.certificate)
    )
    live.keyfile = str(made.key)
    with holdfast.connect(live, namespace=namespace) as locks, locks.lock("x", timeout=20) as lease:
        lease.check()
