"""What several leaves share."""

from __future__ import annotations

from typing import Final

__all__ = ["DATABASES", "ENGINES", "FENCING", "PAUSED"]

ENGINES: Final = ("sqlite", "redis", "postgresql", "etcd", "zookeeper")
DATABASES: Final = ("sqlite", "postgresql")
FENCING: Final = ("import holdfast", "from holdfast import fencing")
PAUSED: Final = (
    "A holder that is paused past its lease goes on when it wakes up: call check() before each step."
)
