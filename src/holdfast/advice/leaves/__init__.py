"""The ways. A new one is one entry here, and an answer in ``questions`` if nothing leads to it yet.

Code in a database uses one table: ``stock (item, quantity, version)``, with a row for ``lamp``.
"""

from __future__ import annotations

from typing import Final

from .data import DATA
from .guards import GUARDS
from .locks import LOCKS
from .work import WORK

__all__ = ["LEAVES"]

LEAVES: Final = (*DATA, *WORK, *LOCKS, *GUARDS)
