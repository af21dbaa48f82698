"""What holds for every test in virtual time."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet_and_quick() -> Iterator[None]:
    """Scripts log what they give up on, and a schedule is full of cycles that live until its end."""
    logging.disable(logging.CRITICAL)
    gc.disable()
    yield
    gc.enable()
    logging.disable(logging.NOTSET)
