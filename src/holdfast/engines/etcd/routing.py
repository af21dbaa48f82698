"""The channel to a cluster: which member is called, with which credentials, and when to switch. No I/O here.

Shared by threads and asyncio, which open the connections and perform ``UnaryCall``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ...core.effects import NotApplied, OutcomeUnknown
from ...errors import EngineUnavailable
from ...runtime.clock import boottime
from . import wire_pb2 as wire
from .config import Config
from .errors import ALL_BUSY, UNUSABLE, AuthTokenError, classify_error
from .rpc import Metadata, RpcError, UnaryCall

__all__ = ["ClusterChannel"]


class ClusterChannel:
    """The members of a cluster, the one in use, and this client's credentials."""

    def __init__(self, config: Config, io_timeout: float, connect: Callable[[str], Any]) -> None:
        self._config = config
        self.timeout = io_timeout / min(len(config.endpoints), 3)
        """Of one call. With several members, one that does not answer must leave time for the others."""
        self._connect = connect
        self._next_endpoint = 0
        self._connection: Any = None
        self._retired: list[tuple[float, Any]] = []
        self._lock = threading.Lock()
        self._token: str | None = None
        self._closed = ""
        """Why nothing is sent any more; empty while the channel is open."""
        self.cluster_id = ""
        """The cluster's id, once it has answered."""
        self.on_switch: Callable[[], None] = lambda: None
        """Called when the channel switches to another connection."""

    # --- calls ----------------------------------------------------------------------------------

    async def call(self, method: str, request: Any, urgent: bool = False) -> Any:
        """One call; an expired token is replaced. Raises what ``errors`` sorts failures into."""
        response = await self._send(method, (request,), self.timeout, urgent)
        if not self.cluster_id:
            self.cluster_id = f"{response.header.cluster_id:x}"
        return response

    async def keep_alive(self, leases: tuple[int, ...], timeout: float) -> list[wire.LeaseKeepAliveResponse]:
        """A keep-alive for each of these leases, over a stream of its own, so that no long-lived stream can
        end unnoticed. Returns a response for each."""
        requests = tuple([wire.LeaseKeepAliveRequest(ID=lease) for lease in leases])
        responses: list[wire.LeaseKeepAliveResponse] = await self._send("", requests, timeout, urgent=True)
        if len(responses) != len(leases):
            raise OutcomeUnknown("etcd ended the stream before every lease was kept alive")
        return responses

    async def ready(self) -> None:
        """Fetch a token if needed, before a stream is opened: a stream cannot do so by itself."""
        connection = self.connection()
        if self._config.user is not None and self._token is None:
            await self._authenticate(connection)

    async def _send(self, method: str, requests: tuple[Any, ...], timeout: float, urgent: bool) -> Any:
        connection = self._connection
        if connection is None:
            connection = self.connection()
        token = self._token
        if token is None and self._config.user is not None:
            await self._authenticate(connection)
            token = self._token
        try:
            metadata = () if token is None else (("token", token),)
            return await UnaryCall(connection, method, requests, timeout, metadata, urgent)
        except RpcError as error:
            failure = self.failure(connection, error)
            if not isinstance(failure, AuthTokenError):
                raise failure from None
        if self._config.user is None:
            raise EngineUnavailable(
                "etcd requires authentication: write the user and the password into the URL,"
                " etcd://user:password@host"
            )
        await self._authenticate(connection)
        try:
            return await UnaryCall(connection, method, requests, timeout, self.metadata(), urgent)
        except RpcError as error:
            raise self.failure(connection, error) from None

    async def _authenticate(self, connection: Any) -> None:
        self._token = None
        request = wire.AuthenticateRequest(name=self._config.user, password=self._config.password)
        try:
            answer = await UnaryCall(connection, "Authenticate", (request,), self.timeout, ())
        except RpcError as error:
            failure = self.failure(connection, error)
            if isinstance(failure, AuthTokenError):
                failure = EngineUnavailable(f"etcd does not accept the user and the password: {failure}")
            raise _unsent(failure) from None
        self._token = answer.token

    def token_refused(self, reason: str) -> bool:
        """Whether a watch was refused because of the token; then the next stream gets a new one."""
        if not isinstance(classify_error("UNKNOWN", reason), AuthTokenError) or self._config.user is None:
            return False
        self._token = None
        return True

    def metadata(self) -> Metadata:
        return () if self._token is None else (("token", self._token),)

    # --- connections ----------------------------------------------------------------------------

    def connection(self) -> Any:
        """The connection in use, or a new one, which costs nothing until a call is sent."""
        connection = self._connection
        if connection is not None:
            return connection
        with self._lock:
            if self._connection is None:
                if self._closed:
                    raise EngineUnavailable(self._closed)
                endpoints = self._config.endpoints
                self._connection = self._connect(endpoints[self._next_endpoint % len(endpoints)])
            return self._connection

    def failure(self, connection: Any, error: RpcError) -> Exception:
        """The error to raise for a failed call; after some failures the channel switches to the next
        member."""
        failure = classify_error(error.code, error.details, self._config.prefix)
        if error.code == ALL_BUSY:
            return failure
        if error.code == UNUSABLE:
            self.mark_unhealthy(connection)
            return NotApplied(str(failure)) if len(self._config.endpoints) > 1 else _unsent(failure)
        if isinstance(failure, NotApplied | OutcomeUnknown):
            self.mark_unhealthy(connection)
        elif isinstance(failure, AuthTokenError):
            self._token = None
        return failure

    def mark_unhealthy(self, connection: Any) -> None:
        """The connection failed or was silent: use the next member, or a new connection to the only one.
        Calls under way on the old connection may still complete."""
        with self._lock:
            if connection is not self._connection or connection is None:
                return  # another call reported it already
            self._retired.append((boottime(), connection))
            self._connection = None
            self._next_endpoint += 1
        self.on_switch()

    def is_retired(self, connection: Any) -> bool:
        """The channel has switched away from it: nothing more is sent over it."""
        return connection is not self._connection

    def take_retired(self, seconds: float = 0.0) -> list[Any]:
        """Connections retired at least this long ago, which the caller closes."""
        with self._lock:
            before = boottime() - seconds
            old = [connection for at, connection in self._retired if at <= before]
            self._retired = [entry for entry in self._retired if entry[0] > before]
        return old

    def close(self) -> list[Any]:
        """Send nothing any more; returns the connections to close."""
        self._closed = "this client is closed: connect again"
        self.mark_unhealthy(self._connection)
        return self.take_retired()

    def forked(self) -> list[Any]:
        """This is the child of a fork; returns the connections to detach from."""
        self._closed = "this client belongs to the parent process: connect again"
        connections = [connection for _, connection in self._retired]
        if self._connection is not None:
            connections.append(self._connection)
        self._connection, self._retired, self._lock = None, [], threading.Lock()
        return connections


def _unsent(failure: Exception) -> Exception:
    """The failure came before the request was sent, so nothing happened."""
    if isinstance(failure, EngineUnavailable):
        failure.nothing_was_sent = True
    return NotApplied(str(failure)) if isinstance(failure, OutcomeUnknown) else failure
