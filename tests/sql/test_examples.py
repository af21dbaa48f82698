"""The examples about one database, on PostgreSQL: with SQLite they run with all others in ``tests/docs``."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencing.sql_clients import new_database
from support import run_python
from support.servers import shared_redis

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.engine("postgresql")
@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("last_unit", "--database"),
        ("money_transfer", "--database"),
        ("worker_fleet", "--database"),
        ("account_stream", "--url"),
        ("chat_room", "--url"),
    ],
)
def test_the_example_is_right_on_postgresql(name: str, option: str, tmp_path: Path) -> None:
    database = new_database("postgresql")
    url = f"postgresql://postgres@{database.host}:{database.port}/{database.name}"
    script = ROOT / "examples" / f"{name}.py"
    with run_python(None, option, url, script=script, cwd=tmp_path) as child:
        child.close_stdin()
        assert "WRONG" not in child.succeed()


INVENTORY = ("compare-and-swap", "lock + guard", "queue")


@pytest.mark.engine("postgresql", "redis")
def test_the_inventory_is_sold_exactly_with_its_data_in_postgresql_and_its_locks_in_redis(
    tmp_path: Path,
) -> None:
    database = new_database("postgresql")
    arguments = (
        *("--database", f"postgresql://postgres@{database.host}:{database.port}/{database.name}"),
        *("--url", shared_redis().url, "--units", "12", "--buyers", "3"),
    )
    for _ in range(2):  # what the first run leaves behind does not confuse the second one
        with run_python(None, *arguments, script=ROOT / "examples" / "inventory.py", cwd=tmp_path) as child:
            child.close_stdin()
            printed = child.succeed()
        assert "12 units, 16 orders, 3 buyers" in printed
        for way in INVENTORY:
            (line,) = [line for line in printed.splitlines() if line.startswith(way)]
            sold, left, rate, verdict = line.removeprefix(way).split()
            assert (sold, left, verdict) == ("12", "0", "right")
            assert int(rate) > 0
