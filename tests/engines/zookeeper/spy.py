"""Counts what clients of this process send."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.engines.zookeeper.session import Session
from support.noting import Noted

__all__ = ["Spy"]


class Spy:
    """Each batch answered since it was last asked: the names of its requests. One batch is one wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._answered: Noted[list[Any]] = Noted()
        shipped = Session.send

        def send(session: Session, requests: Any, notify: Any) -> None:
            def answered(answers: Any) -> None:
                self._answered.note(list(requests))
                notify(answers)

            shipped(session, requests, answered)

        monkeypatch.setattr(Session, "send", send)

    def batches(self) -> list[list[str]]:
        answered = self._answered.since_last_asked()
        return [[type(request).__name__ for request in batch] for batch in answered]
