"""etcd: one server, or a cluster."""

from __future__ import annotations

import base64
import http.client
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .certificates import Certificates, make_certificates
from .errors import ServerFailed
from .group import Group
from .server import Server, find_program

__all__ = ["Etcd", "EtcdCluster"]

ASK_SECONDS: Final = 5.0
ROOT: Final = "root"
EVERYTHING: Final = base64.b64encode(b"\0").decode()
"""As a key and as the end of a range: all keys."""


class Etcd(Server):
    """``etcd``, alone unless ``EtcdCluster`` makes it one of several.

    ``users`` are names and passwords; one must be ``root``. Each may read and write all keys. With ``tls``,
    clients must use TLS. A short heartbeat makes the server ready sooner, and allows leases of one second;
    with etcd's defaults (100, 1000) the shortest lease lasts two. ``quota_bytes`` limits the size of the
    database.
    """

    kind = "etcd"
    port_names = ("client", "peer")

    def __init__(
        self,
        *,
        name: str = "n1",
        tls: bool = False,
        users: Mapping[str, str] | None = None,
        heartbeat_ms: int = 10,
        election_ms: int = 100,
        quota_bytes: int = 0,
    ) -> None:
        super().__init__()
        self.name = name
        self.tls = tls
        self.users = dict(users or {})
        if self.users and ROOT not in self.users:
            raise ServerFailed(f"etcd turns authentication on only with a user {ROOT!r}")
        self._heartbeat_ms = heartbeat_ms
        self._election_ms = election_ms
        self._quota_bytes = quota_bytes
        self.peers: Sequence[Etcd] = (self,)
        """All members of its cluster, itself included."""
        self.cluster_token = secrets.token_hex(8)
        """Keeps apart members of different clusters that reach each other by accident."""

    @property
    def client_url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.address}"

    @property
    def certificates(self) -> Certificates:
        """The certificates of a server with ``tls``."""
        if not self.tls:
            raise ServerFailed("this etcd has no TLS")
        return make_certificates(self.folder, find_program("openssl", "openssl"))

    # --- requests

    def call(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call the JSON gateway: ``call("/v3/kv/put", {"key": …, "value": …})``. With users, as root."""
        headers = {"Authorization": self._token()} if self.users and self._initialised else {}
        return self._request("POST", path, body or {}, headers)

    def _token(self) -> str:
        asked = {"name": ROOT, "password": self.users[ROOT]}
        token: str = self._request("POST", "/v3/auth/authenticate", asked, {})["token"]
        return token

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        connection = self._connection()
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, dict(headers))
            response = connection.getresponse()
            answer = response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"etcd broke off: {error!r}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise ConnectionError(f"etcd answered {response.status}: {answer.decode(errors='replace')[:500]}")
        parsed: dict[str, Any] = json.loads(answer)
        return parsed

    def _connection(self) -> http.client.HTTPConnection:
        if not self.tls:
            return http.client.HTTPConnection(self.host, self.port, timeout=ASK_SECONDS)
        context = self.certificates.client_context()
        return http.client.HTTPSConnection(self.host, self.port, timeout=ASK_SECONDS, context=context)

    # --- hooks of the base class

    def command_line(self) -> list[str]:
        cluster = ",".join(f"{peer.name}={peer._peer_url}" for peer in self.peers)
        options = {
            "name": self.name,
            "data-dir": str(self.data),
            "listen-client-urls": self.client_url,
            "advertise-client-urls": self.client_url,
            "listen-peer-urls": self._peer_url,
            "initial-advertise-peer-urls": self._peer_url,
            "initial-cluster": cluster,
            "initial-cluster-token": self.cluster_token,
            "heartbeat-interval": str(self._heartbeat_ms),
            "quota-backend-bytes": str(self._quota_bytes),
            "election-timeout": str(self._election_ms),
            "logger": "zap",
            "log-outputs": "stderr",
        }
        if self.tls:
            options |= {
                "cert-file": str(self.certificates.certificate),
                "key-file": str(self.certificates.key),
                "trusted-ca-file": str(self.certificates.authority),
            }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return [find_program("etcd", "etcd-server"), *words]

    def ping(self) -> bool:
        """Healthy: a majority has a leader and answers."""
        return self._request("GET", "/health", None, {}).get("health") == "true"

    def initialise(self) -> None:
        if self.users and self.peers[0] is self:
            self._add_users()

    def _add_users(self) -> None:
        self.call("/v3/auth/role/add", {"name": ROOT})
        self.call("/v3/auth/role/add", {"name": "everything"})
        permission = {"permType": "READWRITE", "key": EVERYTHING, "range_end": EVERYTHING}
        self.call("/v3/auth/role/grant", {"name": "everything", "perm": permission})
        for name, password in self.users.items():
            self.call("/v3/auth/user/add", {"name": name, "password": password})
            role = ROOT if name == ROOT else "everything"
            self.call("/v3/auth/user/grant", {"user": name, "role": role})
        self.call("/v3/auth/enable")

    @property
    def _peer_url(self) -> str:
        return f"http://{self.host}:{self.ports['peer']}"


class EtcdCluster(Group[Etcd]):
    """Members that elect a leader, with etcd's default timing, which a busy machine can keep."""

    def __init__(
        self,
        size: int = 3,
        *,
        tls: bool = False,
        users: Mapping[str, str] | None = None,
        heartbeat_ms: int = 100,
        election_ms: int = 1000,
    ) -> None:
        members = [
            Etcd(name=f"n{number}", tls=tls, users=users, heartbeat_ms=heartbeat_ms, election_ms=election_ms)
            for number in range(1, size + 1)
        ]
        for member in members:
            member.peers = members
            member.cluster_token = members[0].cluster_token
        super().__init__(members)

    def leader(self) -> Etcd:
        """The current leader."""
        for member in self.members:
            if member.running:
                status = member.call("/v3/maintenance/status")
                if status.get("leader") and status["leader"] == status["header"]["member_id"]:
                    return member
        raise ServerFailed("no member leads at the moment")
