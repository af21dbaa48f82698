"""What connections of threads and of asyncio have in common."""

from __future__ import annotations

from typing import Any, Final

import grpc

from .options import Options

__all__ = ["CHANNEL_OPTIONS", "credentials"]

CHANNEL_OPTIONS: Final = (
    ("grpc.enable_retries", 0),  # whether to ask again is the protocol's to decide
    ("grpc.use_local_subchannel_pool", 1),  # a connection of our own, shared with no other client
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A connection that is silently dead is noticed; etcd allows a ping every five seconds.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
)


def credentials(options: Options) -> Any:
    """None: without TLS."""
    return grpc.ssl_channel_credentials(*options.certificates()) if options.tls else None
