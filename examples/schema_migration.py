"""Ten instances of a service start at the same moment, and one of them migrates the schema.

The others wait until it has done so; none of them serves with the old schema, and none migrates twice. If the
instance that migrates dies, the next one takes over.

    python examples/schema_migration.py
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import holdfast

INSTANCES = 10
VERSION = 2
FOR_EVER = timedelta(days=36_500)


def main() -> int:
    if len(sys.argv) > 1:
        start_instance(Path(sys.argv[1]))
        return 0
    with tempfile.TemporaryDirectory(prefix="holdfast-example-") as name:
        folder = Path(name)
        with sqlite3.connect(folder / "shop.db") as database:
            database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        words = [sys.executable, __file__, name]
        instances = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(INSTANCES)]
        said = [instance.communicate()[0].split() for instance in instances]
    migrated = sum("migrated" in words for words in said)
    serving = sum("serves" in words for words in said)
    print(f"{INSTANCES} instances started: {migrated} migrated, {serving} serve with version {VERSION}")
    return 0 if migrated == 1 and serving == INSTANCES else 1


def start_instance(folder: Path) -> None:
    with holdfast.connect(f"sqlite:///{folder}/locks.db") as locks:
        # timeout: wait for the instance that migrates. at_least: afterwards nobody does it again.
        with locks.job(f"migrate/{VERSION}", at_least=FOR_EVER, timeout=60) as run:
            if run is not None:
                migrate(folder / "shop.db")
                run.set_result({"version": VERSION})
                print("migrated")
        last = locks.job(f"migrate/{VERSION}").last
        if last is None or last.state != "done":
            sys.exit("the schema could not be migrated: do not serve")
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("SELECT status FROM orders")
        print("serves")


def migrate(database_file: Path) -> None:
    """A crash in the middle runs it again (at least once), so it has to be repeatable."""
    with sqlite3.connect(database_file) as database:
        columns = [column[1] for column in database.execute("PRAGMA table_info(orders)")]
        if "status" not in columns:
            database.execute("ALTER TABLE orders ADD COLUMN status TEXT")


if __name__ == "__main__":
    sys.exit(main())
