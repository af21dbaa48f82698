"""What happens in many threads, noted for one who asks now and then."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

__all__ = ["Noted"]

T = TypeVar("T")


class Noted(Generic[T]):
    """A note that comes during a call is not lost: the next call returns it."""

    def __init__(self) -> None:
        self._noted: deque[T] = deque()
        self.note = self._noted.append

    def since_last_asked(self) -> list[T]:
        return [self._noted.popleft() for _ in range(len(self._noted))]
