"""What is read here is much, and lives as long as the run: it is put where no garbage is looked for."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def out_of_the_way() -> Iterator[None]:
    """A million objects: to look through them takes longer than the short leases of other tests last."""
    yield
    gc.collect()
    gc.freeze()
