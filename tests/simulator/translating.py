"""A client whose requests are answered by scripts of its own: what an engine's adapter does elsewhere."""

from __future__ import annotations

from typing import Any

from holdfast.core.effects import ProtocolCoroutine

from .client import SimulatedClient, Task

__all__ = ["Hurried", "TranslatingClient"]


class Hurried(BaseException):
    """A second interrupt: a request is given up, at whichever of its steps it is."""


class TranslatingClient(SimulatedClient):
    """Requests become operations of another family; subclasses say which in ``_answer``."""

    def start(self, script: ProtocolCoroutine[Any], label: str) -> Task:
        return super().start(self._translated(script), label)

    async def _translated(self, script: ProtocolCoroutine[Any]) -> Any:
        """What a driver's adapter does: requests become operations of the engine."""
        reply: Any = None
        trouble: BaseException | None = None
        while True:
            try:
                op: Any = script.send(reply) if trouble is None else script.throw(trouble)
            except StopIteration as end:
                return end.value
            reply, trouble = None, None
            try:
                reply = await self._answer(op)
            except Hurried:
                pass  # the request is given up, and the script goes on without an answer
            except BaseException as error:
                trouble = error

    async def _answer(self, op: Any) -> Any:
        raise NotImplementedError

    def _strike(self, task: Task, op: Any) -> tuple[Any, BaseException | None]:
        reply, trouble = super()._strike(task, op)
        if reply is None and trouble is None and op.__class__ in self._acts:
            trouble = Hurried()
        return reply, trouble
