"""Counts what clients of this process send."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engines.etcd.rpc import UnaryCall
from holdfast.engines.etcd.threads import EtcdThreads
from holdfast.engines.etcd.wire_pb2 import TxnRequest
from support import wait_until
from support.noting import Noted

__all__ = ["Spy"]


class Spy:
    """The methods called since it was last asked, in order; ``KeepAlive`` for the stream of signs of life."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sent: Noted[UnaryCall] = Noted()
        self._listening = 0
        self.looks: list[TxnRequest] = []
        """Of those who wait for one before them, so far as what was sent has been asked for."""
        shipped = EtcdThreads._send

        def send(op: UnaryCall) -> Any:
            self._sent.note(op)
            return shipped(op)

        monkeypatch.setattr(EtcdThreads, "_send", staticmethod(send))

    def sent(self) -> list[UnaryCall]:
        """In full."""
        sent = self._sent.since_last_asked()
        for op in sent:
            self._listening += op.method == "Range"
            if _is_look(op.requests[0]):
                self.looks.append(op.requests[0])
        return sent

    def methods(self) -> list[str]:
        return [op.method or "KeepAlive" for op in self.sent()]

    def until_settled(self, listening: int, waiting: int = 0) -> None:
        """So many clients have read their events, as each does when it begins to listen, and so many waiters
        have looked again after they had something to wait for. Then nobody sends anything by itself."""

        def settled() -> bool:
            self.sent()
            return (self._listening, len(self.looks)) == (listening, waiting)

        wait_until(settled)


def _is_look(asked: Any) -> bool:
    return (
        isinstance(asked, TxnRequest) and bool(asked.compare) and not asked.success[0].HasField("request_put")
    )
