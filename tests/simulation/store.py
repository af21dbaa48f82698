"""What the locks protect: counters behind a fencing guard, on a server of their own."""

from __future__ import annotations

from holdfast.fencing.rule import Mark, Refuse, after, decide
from simulator import Noted, Server, World

__all__ = ["CounterStore"]


class CounterStore(Server):
    """One counter for each name. Every read-modify-write that the guard accepted must be seen in it."""

    def __init__(self, world: World) -> None:
        super().__init__(world, "store")
        self.counters: dict[str, int] = {}
        self.accepted: dict[str, int] = {}
        self.refused = 0
        self._marks: dict[str, Mark] = {}
        self._seen: set[str] = set()

    def advance(self, name: str, mark: Mark) -> bool:
        """The new holder's first word, before it reads."""
        return self._pass(name, mark)

    def read(self, name: str) -> int:
        return self.counters.get(name, 0)

    def write(self, name: str, mark: Mark, value: int, write_id: str) -> bool:
        """One transaction: the guard's check and the write. A copy of it is not done twice."""
        if write_id in self._seen:
            return True
        if not self._pass(name, mark):
            self.refused += 1
            return False
        self._seen.add(write_id)
        self.counters[name] = value
        self.accepted[name] = self.accepted.get(name, 0) + 1
        self.world.trace.append(Noted(self.world.now, "store", "wrote", (name, mark.token, value)))
        return True

    def _pass(self, name: str, mark: Mark) -> bool:
        decision = decide(self._marks.get(name), mark)
        if isinstance(decision, Refuse):
            return False
        stored = after(self._marks.get(name), decision)
        if stored is not None:
            self._marks[name] = stored
        return True
