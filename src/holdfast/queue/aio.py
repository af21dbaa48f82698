"""The queue for asyncio: the calls of ``holdfast.queue``, the same names, awaited."""

from __future__ import annotations

from .asyncio import AsyncJob, AsyncQueue, connect
from .worker.asyncio import AsyncWorker

__all__ = ["AsyncJob", "AsyncQueue", "AsyncWorker", "connect"]
