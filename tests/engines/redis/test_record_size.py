"""Many waiters with much metadata do not make a record that slows the server down for all clients."""

from __future__ import annotations

import secrets
import threading
from contextlib import closing

import holdfast
from engines.redis.wire import Wire
from support import wait_until
from support.servers import shared_redis

WAITERS = 40
METADATA = {"job": "x" * 4000}


def test_the_queue_keeps_no_long_metadata_and_nobody_loses_its_own() -> None:
    server, namespace = shared_redis(), f"test-{secrets.token_hex(6)}"
    told: list[object] = []

    def waits() -> None:
        with client.lock("x", metadata=METADATA, timeout=60) as lease:
            told.append((lease.metadata, client.inspect("x").holders[0].metadata))

    with holdfast.connect(server.url, namespace=namespace) as client:
        threads = [threading.Thread(target=waits) for _ in range(WAITERS)]
        with client.lock("x"):
            for thread in threads:
                thread.start()
            wait_until(lambda: len(client.inspect("x").waiters) == WAITERS)
            with closing(Wire(server)) as wire:
                keys = wire.ask(b"KEYS", b"*%b*" % namespace.encode())
                size = sum(wire.ask(b"STRLEN", key) for key in keys)
        for thread in threads:
            thread.join()
    assert told == [(METADATA, METADATA)] * WAITERS
    assert size < WAITERS * 300 + 1000, f"{size} bytes"
