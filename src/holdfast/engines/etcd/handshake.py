"""Connecting to one member: its address and TLS, the check of ALPN, and the errors of a failed handshake."""

from __future__ import annotations

import ssl
from typing import NamedTuple

from ...runtime.sockets import describe_error
from .config import Config
from .errors import NEVER_SENT, UNUSABLE
from .http2 import Http2Connection, ProtocolError
from .rpc import RpcError

__all__ = ["Member", "check_protocol", "closed_by_server", "member_of", "no_grpc", "not_connected"]


class Member(NamedTuple):
    """The address of a member, and the TLS of connections to it."""

    endpoint: str
    host: str
    port: int
    tls_context: ssl.SSLContext | None

    @property
    def scheme(self) -> str:
        return "http" if self.tls_context is None else "https"


def member_of(endpoint: str, config: Config) -> Member:
    host, _, port = endpoint.rpartition(":")
    return Member(endpoint, host.strip("[]"), int(port), config.tls_context())


def not_connected(member: Member, error: Exception) -> RpcError:
    """No request was sent yet."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return RpcError(
            UNUSABLE,
            f"the certificate of {member.endpoint} is not trusted ({error.verify_message}): "
            "name the file of its authority, ca=…",
        )
    if isinstance(error, ssl.SSLError):
        # A server that merely closed the connection may be restarting.
        ended = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        return RpcError(
            NEVER_SENT if ended else UNUSABLE,
            f"no TLS with {member.endpoint} ({error.reason or describe_error(error)}):"
            " is it a server without TLS?",
        )
    if member.tls_context is not None and isinstance(error, ConnectionResetError):
        # Its answer to the TLS ClientHello was lost with the connection.
        return RpcError(
            NEVER_SENT,
            f"no TLS with {member.endpoint} ({describe_error(error)}): is it a server without TLS?",
        )
    if isinstance(error, TimeoutError):
        return RpcError(NEVER_SENT, f"no answer from {member.endpoint} in time: is it etcd, and not stopped?")
    return RpcError(NEVER_SENT, f"no connection to {member.endpoint}: {describe_error(error)}")


def check_protocol(member: Member, chosen: str | None) -> None:
    """By ALPN, which etcd always answers: nothing is sent to a server that is not etcd. Raises RpcError."""
    if chosen != "h2":
        raise RpcError(
            UNUSABLE,
            f"{member.endpoint} does not offer HTTP/2 in its TLS handshake (ALPN: {chosen or 'none'}): "
            "is it etcd's port for clients, or a proxy that does not pass on gRPC?",
        )


def no_grpc(member: Member, http2: Http2Connection, error: ProtocolError) -> RpcError:
    """The error for data that is not HTTP/2."""
    if http2.settings_received:
        return RpcError("UNAVAILABLE", f"the connection broke: {error}")
    return RpcError(
        UNUSABLE,
        f"{member.endpoint} does not speak gRPC: is it etcd's port for clients? does it want TLS (tls=true)?",
    )


def closed_by_server(http2: Http2Connection) -> str:
    if http2.settings_received:
        return "the server closed the connection"
    return "the server closed the connection before it sent anything: does it want TLS (tls=true)?"
