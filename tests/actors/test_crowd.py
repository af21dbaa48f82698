"""A random crowd of actors on each database. The mistakes that it would catch are told in virtual time, in
``simulation/test_actors.py``.
"""

from __future__ import annotations

import pytest

from actors.crowd import Crowd
from support.thorough import THOROUGH


@pytest.mark.parametrize("seed", range(40 if THOROUGH else 2))
def test_a_random_crowd(url: str, seed: int) -> None:
    assert Crowd(url, seed).run() == []
