"""etcd for asyncio; a file apart, so that threads never import asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
import grpc.aio

from ...core.ops import Refused, Unknown
from ...drivers.adapter import Hooks
from ...errors import EngineUnavailable
from ...protocols.tickets import Desk
from ...protocols.tickets.ops import Arm, Retire, StoreOp
from .. import scripts
from ..turns_asyncio import Turns
from . import wire_pb2 as wire
from .calls import KEEP_ALIVE, METHODS, WATCH, Failed, Send
from .channels import CHANNEL_OPTIONS, credentials
from .conversation import Conversation
from .failures import NEVER_SENT, TokenExpired
from .inbox import Inbox
from .keys import Keys
from .options import Options
from .store import EtcdStore
from .transport import CLOSE_SECONDS, PAUSE_SECONDS
from .watches import Watches

__all__ = ["EtcdAsyncio"]

T = TypeVar("T")
log = logging.getLogger("holdfast")


class Connection:
    """A channel and its procedures."""

    __slots__ = ("_channel", "calls", "keep_alive", "watch")

    def __init__(self, endpoint: str, secure: Any) -> None:
        if secure is None:
            self._channel = grpc.aio.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(endpoint, secure, options=CHANNEL_OPTIONS)
        self.calls = {
            name: self._channel.unary_unary(
                method.path, method.request.SerializeToString, method.response.FromString
            )
            for name, method in METHODS.items()
        }
        self.keep_alive, self.watch = [
            self._channel.stream_stream(
                method.path, method.request.SerializeToString, method.response.FromString
            )
            for method in (KEEP_ALIVE, WATCH)
        ]

    async def close(self) -> None:
        await self._channel.close()


def failed(error: grpc.aio.AioRpcError) -> Failed:
    return Failed(error.code().name, error.details() or "")


class EtcdAsyncio:
    """The store of one client in one loop."""

    def __init__(self, options: Options, keys: Keys, hooks: Hooks, desk: Desk, scope: str) -> None:
        self._options = options
        self._hooks = hooks
        self._scope = scope
        self._talk = Conversation(options, hooks.io_timeout, self._connect)
        self._store = EtcdStore(keys, hooks.client, self._talk)
        self._inbox = Inbox(desk, self._store, hooks)
        self._watcher = Watcher(self, keys, hooks, self._talk, self._inbox)
        self._talk.switched = self._switched
        self._turns = Turns()
        self._ending: set[asyncio.Task[Any]] = set()
        """Calls under way, and connections that have yet to be closed."""
        self._closed = False

    @property
    def source(self) -> str:
        """By the cluster's own number: revisions of another one do not compare."""
        return f"etcd/{self._talk.cluster}/{self._scope}"

    def _connect(self, endpoint: str) -> Connection:
        return Connection(endpoint, credentials(self._options))

    def _switched(self) -> None:
        """Watch over the new connection; and close old ones, on which nothing can be under way any more."""
        self._watcher.interrupt()
        for old in self._talk.outdated(2 * self._hooks.io_timeout):
            self._see_to_its_end(old.close())

    def _see_to_its_end(self, ending: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Whatever becomes of us, this comes to its end before the loop does. grpc has one ear for all loops
        of a process: news of a call whose loop is closed would make it stumble in the next one."""
        task = asyncio.ensure_future(ending)
        self._ending.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited for it has it

    async def perform(self, op: StoreOp) -> Any:
        if isinstance(op, Arm):
            return await self._watcher.arm(op)
        return await self.run(self._store.script(op))

    async def run(self, script: Any) -> Any:
        """A script of the store: what it awaits is sent."""
        return await scripts.run_in_loop(script, self._send)

    async def _send(self, op: Send) -> Any:
        """A cancellation ends the waiting, not the call: what has been sent has been sent."""
        async with self._turns.turn(op.urgent):
            if self._talk.is_given_up(op.connection) and not self._closed:
                raise Failed("UNAVAILABLE", NEVER_SENT)  # while we waited for our turn
            return await asyncio.shield(self._see_to_its_end(self._call(op)))

    @staticmethod
    async def _call(op: Send) -> Any:
        connection, method, requests, timeout, metadata, _ = op
        try:
            if method:
                return await connection.calls[method](requests[0], timeout=timeout, metadata=metadata)
            stream = connection.keep_alive(timeout=timeout, metadata=metadata)
            for request in requests:
                await stream.write(request)
            await stream.done_writing()
            return [response async for response in stream]
        except grpc.aio.AioRpcError as error:
            raise failed(error) from None
        except asyncio.InvalidStateError:
            raise Failed("UNAVAILABLE", "the stream ended while it was written to") from None
        except asyncio.CancelledError:
            raise Failed("CANCELLED", "the connection was closed") from None

    async def listen(self) -> None:
        self._watcher.listen()

    def disarm(self, nonce: str) -> None:
        self._watcher.disarm(nonce)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = self._inbox.closed = True
        self._talk.timeout = min(self._talk.timeout, CLOSE_SECONDS)
        watched = await self._watcher.close()
        leases = tuple(self._store.leases)
        try:
            if leases:
                await self.run(self._store.script(Retire(leases)))
            elif watched:
                # Once a call has gone there and back, nothing more comes of a stream that was cancelled.
                await self.run(self._talk.call("Status", wire.StatusRequest()))
        except (Refused, Unknown, EngineUnavailable) as trouble:
            log.debug("holdfast: the sessions of a client were left to expire: %s", trouble)
        if self._ending:
            await asyncio.wait(self._ending, timeout=CLOSE_SECONDS)
        await asyncio.gather(*(connection.close() for connection in self._talk.close()))

    def forked(self) -> None:
        """The parent's connections are not ours: let go of them without a word."""
        self._closed = True
        self._talk.forked()


class Watcher:
    """The stream of watches of one client, and the task that reads it."""

    def __init__(
        self, store: EtcdAsyncio, keys: Keys, hooks: Hooks, talk: Conversation, inbox: Inbox
    ) -> None:
        self._store = store
        self._hooks = hooks
        self._talk = talk
        self._inbox = inbox
        self._watches = Watches(keys, hooks.client, hooks.post, inbox.ended, inbox.session_over)
        self._task: asyncio.Task[None] | None = None
        self._requests: asyncio.Queue[wire.WatchRequest] = asyncio.Queue()
        self._stream: Any = None
        self._followed: Any = None
        """The connection that the stream uses."""
        self._closed = asyncio.Event()
        self._failures = 0

    async def arm(self, op: Arm) -> None:
        self.listen()
        confirmed = asyncio.Event()
        self._send(self._watches.arm(op, confirmed.set))
        try:
            async with asyncio.timeout(self._talk.timeout):
                await confirmed.wait()
        except TimeoutError:
            if self._watches.refusal:
                raise EngineUnavailable(f"etcd does not let us watch: {self._watches.refusal}") from None
            self._talk.doubt(self._followed)
            raise Refused("etcd did not confirm in time that it watches") from None

    def disarm(self, nonce: str) -> None:
        self._send(self._watches.disarm(nonce))

    def _send(self, requests: list[wire.WatchRequest]) -> None:
        for request in requests:
            self._requests.put_nowait(request)

    def listen(self) -> None:
        if self._task is None and not self._closed.is_set():
            self._watches.arm_inbox(self._inbox.watched)
            self._task = asyncio.get_running_loop().create_task(self._serve(), name="holdfast-etcd-watch")

    async def _serve(self) -> None:
        while not await self._pause(PAUSE_SECONDS[min(self._failures, len(PAUSE_SECONDS) - 1)]):
            self._failures += 1
            try:
                await self._follow()
            except (Refused, Unknown, EngineUnavailable, TokenExpired) as trouble:
                log.debug("holdfast: the watch of etcd ended: %s", trouble)
            except Exception:
                log.exception("holdfast: the watch of etcd ended; who waits looks by itself from now on")
                raise

    async def _pause(self, seconds: float) -> bool:
        """Whether it was the last one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        return self._closed.is_set()

    async def _follow(self) -> None:
        """One stream, from its beginning to its end."""
        await self._store.run(self._talk.ready())
        connection = self._talk.connection()
        metadata = (*self._talk.metadata(), ("hasleader", "true"))
        if self._closed.is_set():
            return
        stream = connection.watch(metadata=metadata)
        self._stream, self._followed, self._requests = stream, connection, asyncio.Queue()
        self._send(self._watches.restart())
        writer = asyncio.create_task(self._write(stream, self._requests))
        try:
            async for response in stream:
                self._failures = 0
                self._send(self._watches.feed(response))
                if self._watches.refusal and self._talk.token_refused(self._watches.refusal):
                    self._watches.refusal = ""
                    return
                if self._inbox.unread:
                    await self._store.run(self._inbox.read())
        except grpc.aio.AioRpcError as error:
            raise self._talk.failure(connection, failed(error)) from None
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]  # we are in one
                raise
            # The stream was cancelled, not we.
        finally:
            writer.cancel()
            stream.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    @staticmethod
    async def _write(stream: Any, requests: asyncio.Queue[wire.WatchRequest]) -> None:
        while True:
            await stream.write(await requests.get())

    def interrupt(self) -> None:
        """Another connection is used from now on: watch there."""
        if self._stream is not None:
            self._stream.cancel()

    async def close(self) -> bool:
        """The stream is cancelled rather than whoever reads it, so that its end is read. Whether there was
        anything to close."""
        self._closed.set()
        if self._task is None:
            return False
        self.interrupt()
        await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return True
