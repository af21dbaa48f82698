"""An administrator's view of an etcd: its keys and leases, and what can be done to them from outside."""

from __future__ import annotations

import base64
from typing import Any

from holdfast.lab.servers import Etcd

__all__ = ["Admin"]


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Admin:
    """Speaks the server's JSON gateway."""

    def __init__(self, server: Etcd) -> None:
        self._server = server

    def keys(self, part: str = "") -> dict[str, int]:
        """Every key of which this is a part, and the lease it hangs on."""
        everything = {"key": _b64(b"\0"), "range_end": _b64(b"\0"), "keys_only": True}
        kvs = self._server.call("/v3/kv/range", everything).get("kvs", [])
        found = {base64.b64decode(kv["key"]).decode(): int(kv.get("lease", 0)) for kv in kvs}
        return {key: lease for key, lease in found.items() if part in key}

    def tickets(self, namespace: str) -> list[str]:
        return [key for key in self.keys(f"/{namespace}/n/") if "/t/" in key]

    def sessions(self, namespace: str) -> set[int]:
        """The leases of clients; others keep what is to be forgotten one day."""
        return {lease for key, lease in self.keys(f"/{namespace}/c/").items() if "/s/" in key}

    def leases(self) -> set[int]:
        return {int(each["ID"]) for each in self._server.call("/v3/lease/leases").get("leases", [])}

    def revoke(self, lease: int) -> None:
        self._server.call("/v3/lease/revoke", {"ID": lease})

    def delete(self, key: str) -> None:
        self._server.call("/v3/kv/deleterange", {"key": _b64(key.encode())})

    def put(self, key: str, value: bytes = b"") -> None:
        self._server.call("/v3/kv/put", {"key": _b64(key.encode()), "value": _b64(value)})

    def revision(self) -> int:
        answer: dict[str, Any] = self._server.call("/v3/kv/range", {"key": _b64(b"x")})
        return int(answer["header"]["revision"])

    def compact(self) -> None:
        """Forget the history up to now."""
        self.put("elsewhere")
        self._server.call("/v3/kv/compaction", {"revision": self.revision()})
