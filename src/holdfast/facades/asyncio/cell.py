"""Cells and counters, for asyncio."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...core import arguments
from ...recipes import cell as recipe

if TYPE_CHECKING:
    from ...aio import AsyncClient

__all__ = ["AsyncCell", "AsyncCounter"]


class AsyncCell:
    """A small linearizable register: it changes by compare-and-swap, and has no holder."""

    __slots__ = ("_cell", "_run")

    def __init__(self, client: AsyncClient, name: str) -> None:
        arguments.check_name(name)
        recipe.check_engine(client.guarantees)
        self._cell = recipe.Cell(client._driver.client_state, name)
        self._run = client._driver.run

    def __repr__(self) -> str:
        return f"<holdfast.AsyncCell {self.name!r}>"

    @property
    def name(self) -> str:
        return self._cell.name

    async def get(self) -> tuple[bytes | None, int]:
        """The value and its version; ``(None, 0)`` if it was never set."""
        contents = await self._run(recipe.read(self._cell))
        return contents.data, contents.version

    async def set_if(self, version: int, value: bytes) -> int:
        """Store ``value`` if the cell still has this version, and return the new one; else Conflict.

        version: as ``get`` returned it; 0: only if the cell was never set.
        value: at most 64 KiB.
        """
        recipe.check_version(version)
        return await self._run(recipe.set_if(self._cell, version, arguments.check_value(value)))

    async def update(self, change: Callable[[bytes | None], bytes], *, timeout: float | None = None) -> bytes:
        """Store ``change(value)`` and return it; repeated while other writers come first.

        change: gets the value (None: never set) and returns the new one. It may be called several times, so
            it must do nothing else.
        timeout: how long to repeat before Conflict is raised; None: for ever.
        """
        seconds = arguments.check_timeout(timeout)
        return await self._run(recipe.update(self._cell, recipe.checked(change), seconds))


class AsyncCounter:
    """A whole number that many processes add to."""

    __slots__ = ("_cell",)

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._cell = AsyncCell(client, name)

    def __repr__(self) -> str:
        return f"<holdfast.AsyncCounter {self.name!r}>"

    @property
    def name(self) -> str:
        return self._cell.name

    async def get(self) -> int:
        """The number; 0 if nothing was added yet."""
        value, _ = await self._cell.get()
        return recipe.number_of(self.name, value)

    async def add(self, amount: int = 1, *, timeout: float | None = None) -> int:
        """Add ``amount`` (it may be negative) and return the sum.

        timeout: how long to repeat while others add, too, before Conflict is raised; None: for ever.
        """
        change = recipe.addition(self.name, amount)
        return recipe.number_of(self.name, await self._cell.update(change, timeout=timeout))
