"""Counts what clients of this process send."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engines.etcd.calls import Send
from holdfast.engines.etcd.transport import EtcdThreads
from support.noting import Noted

__all__ = ["Spy"]


class Spy:
    """The methods called since it was last asked, in order; ``KeepAlive`` for the stream of signs of life."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sent: Noted[Send] = Noted()
        shipped = EtcdThreads._send

        def send(op: Send) -> Any:
            self._sent.note(op)
            return shipped(op)

        monkeypatch.setattr(EtcdThreads, "_send", staticmethod(send))

    def sent(self) -> list[Send]:
        """In full."""
        return self._sent.since_last_asked()

    def methods(self) -> list[str]:
        return [op.method or "KeepAlive" for op in self.sent()]
