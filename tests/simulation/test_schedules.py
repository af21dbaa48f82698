"""Random schedules, the same ones every time: what ships keeps its promises whatever goes wrong.

``make sim`` runs others, and more of them.
"""

from __future__ import annotations

import gc

import pytest

from simulation.campaign import describe_failure, one_schedule, shrunk

BATCHES = 30
BATCH = 80


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(BATCHES))
def test_promises_are_kept(batch: int) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        outcome = one_schedule(seed)
        if outcome.found:
            pytest.fail(describe_failure(shrunk(outcome)), pytrace=False)
        if seed % 20 == 0:
            gc.collect()
