"""Counts what clients of this process send."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engines.zookeeper.link import Link

__all__ = ["Spy"]


class Spy:
    """Each batch sent since it was last asked: the names of its requests. One batch is one wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sent: list[list[Any]] = []
        shipped = Link.send

        def send(link: Link, requests: Any, notify: Any) -> None:
            self._sent.append(list(requests))
            shipped(link, requests, notify)

        monkeypatch.setattr(Link, "send", send)

    def batches(self) -> list[list[str]]:
        sent, self._sent[:] = list(self._sent), []
        return [[type(request).__name__ for request in batch] for batch in sent]
