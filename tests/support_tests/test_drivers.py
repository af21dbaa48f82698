"""Which tests of the contract an engine is held to under one driver only."""

from __future__ import annotations

import re
from collections import defaultdict

from contract.engines import DRIVERS, FRESH_URL
from support import run_python
from support.realtime import TESTS

TEST_ID = re.compile(r"::(?P<test>\w+)\[(?P<driver>[a-z]+)-(?P<scheme>[^]]+)\]$")


def test_what_takes_seconds_is_told_once_for_each_engine_and_each_engine_meets_both_drivers() -> None:
    arguments = ("--collect-only", "-q", "-p", "no:cacheprovider", "-m", "one_driver", "tests/contract")
    environment = {"HOLDFAST_TEST_ENGINES": None, "PYTEST_XDIST_WORKER": None, "PYTEST_ADDOPTS": None}
    with run_python(None, *arguments, module="pytest", env=environment, cwd=TESTS.parent) as process:
        assert process.wait(60) == 0, process.stderr
        found = [match for line in process.stdout.splitlines() if (match := TEST_ID.search(line))]
    drivers: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    met: defaultdict[str, set[str]] = defaultdict(set)
    for each in found:
        drivers[each["scheme"], each["test"]].append(each["driver"])
        met[each["scheme"]].add(each["driver"])
    assert len(drivers) > 80
    for (scheme, test), told in drivers.items():
        assert len(told) == (2 if scheme == "memory" else 1), (scheme, test)
    for scheme in FRESH_URL.keys() - {"redis+sentinel", "rediss"}:  # these meet one such test or two
        assert met[scheme] == set(DRIVERS), scheme
