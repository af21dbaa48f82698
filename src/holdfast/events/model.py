"""What a store gives back: an event, a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

__all__ = ["Event", "Snapshot"]


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a stream, as it was appended."""

    stream: str
    version: int
    """The version of the stream after this event: 1 for its first one."""
    data: Mapping[str, Any]
    at: datetime
    """When it was appended, by the clock of the database (UTC). For people: it orders nothing."""
    position: int | None = None
    """The place in the order of all events, from 1. None where one stream was read: see ``read_all``."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a stream amounted to at a version."""

    stream: str
    version: int
    data: Mapping[str, Any]
