"""Frames as no server should send them, and a round in which a client reads them: for the tests and by hand.

``python -m engines.etcd.http2_noise SEED ROUNDS`` from the folder of the tests runs a longer campaign.
"""

from __future__ import annotations

import collections
import random
import struct
import sys
import time

from hpack import Encoder

from holdfast.engines.etcd.http2 import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    LOCAL_MAX_FRAME_SIZE,
    MESSAGE_BYTES_MAX,
    PING,
    PINGS_MAX,
    RST_STREAM,
    SETTINGS,
    STREAM_RECEIVE_WINDOW,
    WINDOW_UPDATE,
    Http2Connection,
    ProtocolError,
    _frame,
    length_prefixed,
)
from holdfast.engines.etcd.rpc import WATCH, RpcError, decode_response

__all__ = ["FRAMES_MAX", "play"]

FRAMES_MAX = 40
BLOCKS = [
    [(":status", "200"), ("content-type", "application/grpc")],
    [(":status", "200"), ("content-type", "text/html")],
    [(":status", "100")],
    [(":status", "9" * 40)],
    [("grpc-status", "0")],
    [("grpc-status", "9" * 5000)],
    [("grpc-status", "\u00b2")],
    [("grpc-status", "5"), ("grpc-message", "%00%1b[2J%zz%")],
    [("x" * 3000, "y" * 3000)],
    [],
]


def _block(rng: random.Random) -> bytes:
    encoded = Encoder().encode(rng.choice(BLOCKS), huffman=rng.random() < 0.5)
    if rng.random() < 0.2:
        return rng.randbytes(rng.randrange(60))
    if rng.random() < 0.2:
        return _bent(rng, encoded)
    return encoded


def _bent(rng: random.Random, data: bytes) -> bytes:
    """With a few bytes changed, or an end cut off."""
    bent = bytearray(data)
    for _ in range(rng.randrange(4)):
        if bent:
            bent[rng.randrange(len(bent))] = rng.randrange(256)
    return bytes(bent[: rng.randrange(len(bent) + 1)] if rng.random() < 0.3 else bent)


def _data(rng: random.Random) -> bytes:
    which = rng.randrange(5)
    if which == 0:
        return rng.randbytes(rng.randrange(200))
    if which == 1:
        return struct.pack(">BL", rng.randrange(3), rng.choice([0, 1, MESSAGE_BYTES_MAX, 2**32 - 1]))
    if which == 2:
        return b"<html>"
    if which == 3:
        return b""
    return b"".join([length_prefixed(rng.randbytes(rng.randrange(50))) for _ in range(rng.randrange(4))])


def _tame_frame(rng: random.Random) -> bytes:
    """By itself in order, so that more of what follows is read."""
    stream = rng.choice([1, 3, 5])
    which = rng.randrange(8)
    if which < 3:
        return _frame(DATA, rng.choice([0, 0, 0, 1]), stream, _data(rng))
    if which == 3:
        block = Encoder().encode(rng.choice(BLOCKS), huffman=rng.random() < 0.5)
        at, end = rng.randrange(len(block) + 1), rng.choice([0, 1])
        if rng.random() < 0.5:
            return _frame(HEADERS, 4 | end, stream, block)
        return _frame(HEADERS, end, stream, block[:at]) + _frame(CONTINUATION, 4, stream, block[at:])
    if which == 4:
        return _frame(PING, rng.choice([0, 1]), 0, rng.randbytes(8))
    if which == 5:
        return _frame(WINDOW_UPDATE, 0, rng.choice([0, stream]), struct.pack(">L", rng.randrange(1000)))
    if which == 6:
        value = struct.pack(">HL", rng.randrange(1, 8), rng.choice([0, 1, 100, 2**14]))
        return _frame(SETTINGS, 0, 0, value)
    return _frame(99, rng.randrange(256), stream, rng.randbytes(rng.randrange(20)))


def _any_frame(rng: random.Random) -> bytes:
    stream = rng.choice([0, 1, 1, 1, 3, 3, 5, 2, 2**31 - 1])
    flags = rng.choice([0, 1, 4, 5, 5, 8, 0x20, rng.randrange(256)])
    kind = rng.choice(
        [DATA, DATA, HEADERS, HEADERS, SETTINGS, PING, WINDOW_UPDATE, RST_STREAM, CONTINUATION, GOAWAY, 99]
    )
    if kind == DATA:
        payload = _data(rng)
    elif kind in (HEADERS, CONTINUATION):
        payload = _block(rng)
    elif kind == SETTINGS:
        payload = b"".join(
            [
                struct.pack(">HL", rng.randrange(8), rng.choice([0, 1, 100, 2**14, 2**31 - 1, 2**32 - 1]))
                for _ in range(rng.randrange(3))
            ]
        )
    elif kind == PING:
        payload = rng.randbytes(8)
    elif kind == WINDOW_UPDATE:
        payload = struct.pack(">L", rng.choice([0, 1, 1000, 2**31 - 1]))
    elif kind == RST_STREAM:
        payload = struct.pack(">L", rng.randrange(14))
    elif kind == GOAWAY:
        payload = struct.pack(">LL", rng.choice([0, 1, 2**31 - 1]), 0) + rng.randbytes(rng.randrange(9))
    else:
        payload = rng.randbytes(rng.randrange(20))
    frame = _frame(kind, flags, stream, payload)
    return _bent(rng, frame) if rng.random() < 0.05 else frame


def _speech(rng: random.Random) -> bytes:
    if rng.random() < 0.05:
        return rng.randbytes(rng.randrange(400))
    said = [_frame(SETTINGS, 0, 0)] if rng.random() < 0.98 else []
    if rng.random() < 0.6:
        said.append(_frame(HEADERS, 4, 1, Encoder().encode(BLOCKS[0])))
    wildness = rng.choice([0.0, 0.02, 1.0])
    said += [
        _any_frame(rng) if rng.random() < wildness else _tame_frame(rng)
        for _ in range(rng.randrange(FRAMES_MAX))
    ]
    return b"".join(said)


def play(seed: int) -> str:
    """One connection with two calls and a watch, and noise in pieces. Tells how it ended; whatever is not
    what the callers expect is raised."""
    rng = random.Random(seed)
    client = Http2Connection("http", "localhost:2379")
    calls = [
        client.open_stream("/a", (), 1.0, length_prefixed(b"question"), end_stream=True) for _ in range(2)
    ]
    calls.append(client.open_stream("/watch", (), None, length_prefixed(b"watch"), end_stream=False))
    speech = _speech(rng)
    at, ended = 0, "read"
    while at < len(speech):
        size = rng.choice([1, 7, 64, 1 << 16])
        try:
            client.receive_data(speech[at : at + size])
        except ProtocolError:
            ended = "broken"
            client.fail_streams("it broke")
            break
        at += size
        assert len(client._buffer) <= LOCAL_MAX_FRAME_SIZE + 9
        assert len(client._unacknowledged_pings) <= PINGS_MAX
        for call in calls:
            assert sum(map(len, call.messages)) <= STREAM_RECEIVE_WINDOW + MESSAGE_BYTES_MAX
        if rng.random() < 0.3:
            client.acknowledge_pings()
            client.data_to_send()
        if rng.random() < 0.3:
            for message in client.take(calls[2]):
                try:
                    decode_response(WATCH, message)
                except RpcError:
                    ended = "unreadable message"
    if ended == "broken":
        assert all(call.is_closed for call in calls)
    assert all(call.is_closed or call.failure is None for call in calls)
    return ended


def main(seed: int, rounds: int) -> None:
    began = time.monotonic()
    ends: collections.Counter[str] = collections.Counter()
    for number in range(seed, seed + rounds):
        try:
            ends[play(number)] += 1
        except BaseException:
            sys.stderr.write(f"seed {number}\n")
            raise
    sys.stdout.write(f"{rounds} rounds from seed {seed} in {time.monotonic() - began:.0f} s: {dict(ends)}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
