"""All names of a keyspace, with their records."""

from __future__ import annotations

from typing import Final

from hiredis import ReplyError

from ...rules.record import is_idle
from ...rules.requests import Inspect, Snapshot
from ..resp.codec import pack_command
from ..resp.config import Address
from .codec import decode, encode_packed
from .keys import name_of, scan_pattern
from .routing import Router
from .topology import masters_of

__all__ = ["list_names"]

SCAN_COUNT: Final = b"1000"
INSPECT_BATCH: Final = 100


async def list_names(router: Router, prefix: str) -> list[tuple[str, Snapshot]]:
    topology = router.topology
    found: dict[str, Snapshot] = {}  # both servers show the names of a slot that is moving
    for address in [topology.home] if topology.home is not None else masters_of(topology.masters):
        names = sorted(await _scan(router, address, prefix))
        for start in range(0, len(names), INSPECT_BATCH):
            found |= await _inspect(router, address, names[start : start + INSPECT_BATCH])
    return sorted(found.items(), key=lambda item: item[0].encode())


async def _scan(router: Router, address: Address, prefix: str) -> set[str]:
    names: set[str] = set()
    cursor = b"0"
    pattern = scan_pattern(router.space, prefix)
    while True:
        command = pack_command(b"SCAN", cursor, b"MATCH", pattern, b"COUNT", SCAN_COUNT)
        reply = (await router.exchange(address, command, 1))[0]
        if isinstance(reply, ReplyError):
            raise router.topology.error_for(str(reply), address)
        cursor, keys = reply
        for key in keys:
            name = name_of(router.space, key)
            if name is not None and name.startswith(prefix):
                names.add(name)
        if cursor == b"0":
            return names


async def _inspect(router: Router, address: Address, names: list[str]) -> dict[str, Snapshot]:
    """The records of these names, without the idle ones."""
    request = Inspect()
    script = router.space.scripts["inspect"]
    payloads = [encode_packed(router.space, name, request) for name in names]
    raws = await router.exchange(address, b"".join(payloads), len(payloads))
    found = {}
    for name, payload, raw in zip(names, payloads, raws, strict=True):
        settled = await router.settle([raw], address, payload, lambda: script)
        snapshot = decode(request, settled[0])
        if isinstance(snapshot, Snapshot) and not (
            is_idle(snapshot.record) and snapshot.record.value is None
        ):
            found[name] = snapshot
    return found
