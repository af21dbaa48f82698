"""Whatever bytes come, they are read or refused, within bounds: nothing else is ever raised."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.etcd.http2_noise import play
from holdfast.engines.etcd.http2 import SETTINGS, Http2Connection, ProtocolError, _frame

ROUNDS = 400


@pytest.mark.parametrize("part", range(4))
def test_noise_of_any_kind_is_read_or_refused(part: int) -> None:
    first = random.SystemRandom().randrange(2**40)
    for seed in range(first, first + ROUNDS // 4):
        try:
            play(seed)
        except Exception as error:
            pytest.fail(f"engines.etcd.http2_noise.play({seed}) raised {error!r}")


FRAMES = st.lists(
    st.builds(
        _frame,
        st.integers(0, 12),
        st.integers(0, 255),
        st.sampled_from([0, 1, 2, 3, 2**31 - 1]),
        st.binary(max_size=60),
    ),
    max_size=12,
)


@given(FRAMES, st.integers(1, 50), st.booleans())
def test_frames_of_any_content_are_read_or_refused(frames: list[bytes], chunk: int, greeted: bool) -> None:
    client = Http2Connection("http", "localhost:2379")
    calls = [client.open_stream("/a", (), 1.0, b"question", end_stream=True) for _ in range(2)]
    data = b"".join([_frame(SETTINGS, 0, 0), *frames] if greeted else frames)
    try:
        for at in range(0, len(data), chunk):
            client.receive_data(data[at : at + chunk])
    except ProtocolError:
        client.fail_streams("it broke")
        assert all(call.is_closed for call in calls)
