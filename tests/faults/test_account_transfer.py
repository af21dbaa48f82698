"""``examples/account_transfer.py`` with many processes: money is conserved, and nobody waits for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from contract.engines import FRESH_URL
from support import run_python
from support.thorough import THOROUGH

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "account_transfer.py"

WORKERS, TRANSFERS = (20, 200) if THOROUGH else (6, 10)

TIMEOUT_SECONDS = 110.0


@pytest.mark.parametrize(
    "scheme",
    [pytest.param(each, marks=pytest.mark.engine(each)) for each in ("sqlite", "redis", "postgresql")],
)
def test_money_is_conserved_and_no_deadlock_is_left(scheme: str, tmp_path: Path) -> None:
    arguments = ["--workers", str(WORKERS), "--transfers", str(TRANSFERS), "--accounts", "10"]
    url = FRESH_URL[scheme](tmp_path)
    with run_python(None, *arguments, "--url", url, script=EXAMPLE, cwd=tmp_path) as child:
        child.close_stdin()
        printed = child.succeed(TIMEOUT_SECONDS)
    assert "together 1000" in printed
    assert "no money was lost or made" in printed
