"""No engine without the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
import holdfast.aio
from contract.engines import FRESH_URL, each_engine
from holdfast.engines import SCHEMES


def test_every_registered_engine_has_its_line_in_the_contract() -> None:
    missing = sorted(set(SCHEMES) - set(FRESH_URL))
    assert not missing, f"add a fresh URL for each of these to tests/contract/engines.py: {missing}"


def test_every_line_of_the_contract_is_a_registered_engine() -> None:
    assert set(FRESH_URL) <= set(SCHEMES)


@pytest.mark.parametrize("scheme", each_engine())
def test_every_engine_states_its_guarantees(scheme: str, tmp_path: Path) -> None:
    with holdfast.connect(FRESH_URL[scheme](tmp_path)) as client:
        promised = client.guarantees
    assert promised.engine
    assert promised.scope in ("process", "user", "machine", "cluster")
    assert set(promised.primitives) >= {"lock"}
    assert promised.needs
    assert promised.faults
    for each in (promised.fencing, promised.fifo, promised.crash_release, promised.loss_signal):
        assert each.strip()
    assert holdfast.aio.connect(FRESH_URL[scheme](tmp_path)).guarantees == promised


@pytest.mark.parametrize("scheme", each_engine())
def test_every_engine_says_how_far_clock_rates_may_differ_and_what_breaks_that(
    scheme: str, tmp_path: Path
) -> None:
    with holdfast.connect(FRESH_URL[scheme](tmp_path)) as client:
        promised = client.guarantees
    assert any("clock rates within" in need and "1 %" in need for need in promised.needs)
    assert "clock rates differ by more than 1 %" in promised.faults
    assert any("paused by its hypervisor" in fault for fault in promised.faults)
