"""``holdfast group``: the members of groups, and which partitions they own."""

from __future__ import annotations

import json
import os

import holdfast
from cli.tools import CommandLine
from holdfast import ownership
from support import wait_until


def test_a_group_and_its_members(command_line: CommandLine, locks: holdfast.Client) -> None:
    assert "no group" in command_line.start("group", "ls").succeed()
    nothing = command_line.finish("group", "show", "orders")
    assert (nothing.returncode, nothing.stdout) == (1, "there is no group 'orders'\n")
    with ownership.join(locks, "orders", 5, member="web-1") as member:
        wait_until(lambda: len(member.owned) == 5)
        said = command_line.start("group", "show", "orders").succeed()
        for part in ("5 of 5 partitions owned, settled", "web-1", f"/{os.getpid()}/", "0-4"):
            assert part in said
        row = command_line.start("group", "ls").succeed().strip().splitlines()[-1]
        assert row.split() == ["orders", "1", "5", "5", "settled"]
        document = json.loads(command_line.start("group", "show", "orders", "--json").succeed())
        assert set(document) == {"group", "partitions", "generation", "members", "owners", "settled"}
        (shown,) = document["members"]
        assert set(shown) == {
            "member",
            "owner",
            "age",
            "rejoin_within",
            "assigned",
            "owned",
            "present",
        }
        assert (shown["member"], shown["present"], shown["owned"]) == ("web-1", True, [0, 1, 2, 3, 4])
        tokens = [member.lease_of(partition).token for partition in range(5)]
        assert [owner["token"] for owner in document["owners"]] == tokens
        (listed,) = json.loads(command_line.start("group", "ls", "--json").succeed())
        assert listed["owners"] == document["owners"]
        member.leave(returning=True)
        said = command_line.start("group", "show", "orders").succeed()
        assert "0 of 5 partitions owned, no member is there" in said
        assert "away, kept for 10 s" in said
