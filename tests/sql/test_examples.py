"""The examples about one database, on PostgreSQL: with SQLite they run with all others in ``tests/docs``."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencing.sql_clients import new_database
from support import run_python

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.engine("postgresql")
@pytest.mark.parametrize("name", ["last_unit", "money_transfer"])
def test_the_example_is_right_on_postgresql(name: str, tmp_path: Path) -> None:
    database = new_database("postgresql")
    url = f"postgresql://postgres@{database.host}:{database.port}/{database.name}"
    script = ROOT / "examples" / f"{name}.py"
    with run_python(None, "--database", url, script=script, cwd=tmp_path) as child:
        child.close_stdin()
        assert "WRONG" not in child.succeed()
