"""The guard for an object store with the S3 API: for boto3's client, and for one whose calls are awaited.

The plans are in ``object_plans``; here is what carries them out. Clients are used by their shape, so nothing
of AWS's is imported: ``get_object``, ``put_object`` and ``delete_object`` with their usual keywords, and
errors that have a ``response``.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

from ..errors import InvalidArgument, Unsupported
from ..model import Fence
from .arguments import Presentable, checked_source
from .object_plans import (
    MAX_ENVELOPE_BYTES,
    Content,
    DeleteObject,
    GetObject,
    Got,
    Layout,
    ObjectPlans,
    Outcome,
    Pause,
    PutObject,
)
from .plans import run, run_async
from .writers import advancing_mark, writing_mark

__all__ = ["AsyncFencedObject", "FencedObject"]

CHUNK_BYTES: Final = 1 << 20
MAX_KEY_BYTES: Final = 1024 - 33
"""The store's limit, less what the manifest's objects add."""


class _Guarded:
    """What both forms share: the arguments, checked before any I/O."""

    def __init__(self, s3: Any, bucket: str, key: str, *, layout: Layout = "envelope") -> None:
        for what, text in (("bucket", bucket), ("key", key)):
            if not isinstance(text, str) or not text:
                raise InvalidArgument(f"{what} {text!r} must be text, and not empty")
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                raise InvalidArgument(f"{what} {text!r} cannot be written as UTF-8 (a lone surrogate)")
        if len(key.encode()) > MAX_KEY_BYTES:
            raise InvalidArgument(
                f"the key has {len(key.encode())} bytes, at most {MAX_KEY_BYTES} are allowed"
            )
        if layout not in ("envelope", "manifest"):
            raise InvalidArgument(f"layout {layout!r} is neither 'envelope' nor 'manifest'")
        for method in ("get_object", "put_object", "delete_object"):
            if not callable(getattr(s3, method, None)):
                raise InvalidArgument(
                    f"{type(s3).__name__} has no {method}: pass a client, as boto3.client('s3') gives it"
                )
        self._s3 = s3
        self._bucket = bucket
        self._key = key
        self._layout = layout
        self._plans = ObjectPlans(f"s3://{bucket}/{key}", key, layout)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._plans.shown} {self._layout}>"

    def _checked(self, data: object) -> Content:
        if isinstance(data, bytes | bytearray | memoryview):
            size = len(memoryview(data).cast("B"))
            if self._layout == "envelope" and size > MAX_ENVELOPE_BYTES:
                raise InvalidArgument(
                    f"data is {size} bytes, and an envelope has {MAX_ENVELOPE_BYTES} at most: use"
                    " FencedObject(…, layout='manifest')"
                )
            return bytes(data)
        if hasattr(data, "read") and hasattr(data, "seek"):
            file: Content = data  # type: ignore[assignment]  # as far as its shape tells
            return file
        raise InvalidArgument(f"data is {type(data).__name__}, neither bytes nor a binary file that can seek")


class FencedObject(_Guarded):
    """An object that only the newest holder of a lock can replace.

        prices = FencedObject(boto3.client("s3"), "shop", "prices.json")
        with locks.lock("prices") as lease:
            prices.advance(lease)                     # older holders are out from here on
            found = json.loads(prices.get() or b"{}")
            prices.put(json.dumps(found | {"tea": 4}).encode(), lease)

    The store must check ``If-Match`` and ``If-None-Match`` atomically: ``holdfast fence probe`` finds out.
    Read and write the key through this class alone; it keeps a header before the content. With
    ``layout="manifest"``, for content beyond 64 MiB or in files, the content lies in an object of its own,
    and the key has the header alone.
    """

    def get(self) -> bytes | None:
        """The content. None if nothing has been put, or it was deleted."""
        return run(self._plans.get(), self._carry_out)

    def download(self, file: BinaryIO) -> bool:
        """Copy the content into a binary file, in pieces. False if there is none."""
        return run(self._plans.get(file), self._carry_out) is not None

    def put(self, data: bytes | bytearray | memoryview | BinaryIO, lease_or_token: Presentable) -> None:
        """Replace the content, or raise ``StaleToken`` if a newer holder has been here.

        ``Conflict``: others changed the object again and again, and nothing was written. Any other error
        leaves open whether it was; putting again with the same lease is always allowed.
        """
        run(self._plans.put(self._checked(data), writing_mark(lease_or_token)), self._carry_out)

    def delete(self, lease_or_token: Presentable) -> None:
        """Delete the content and keep the fence, so that no older holder brings the content back."""
        run(self._plans.put(None, writing_mark(lease_or_token)), self._carry_out)

    def advance(self, lease_or_token: Presentable) -> None:
        """Tell the guard of a new grant before the first ``get``: older holders are out from here on."""
        run(self._plans.advance(advancing_mark(lease_or_token)), self._carry_out)

    def newest(self) -> Fence | None:
        """The newest grant the guard has seen, None if none. For people and tests: reading guards nothing."""
        mark = run(self._plans.newest(), self._carry_out)
        return None if mark is None else mark.fence

    def move(self, source: str) -> None:
        """Hand the object to another source of tokens, deliberately: ``source`` is ``lease.fence.source``."""
        run(self._plans.move(checked_source(source)), self._carry_out)

    def _carry_out(self, request: Any) -> Any:
        if isinstance(request, Pause):
            time.sleep(request.seconds)
            return None
        try:
            response = getattr(self._s3, _METHODS[type(request)])(**_keywords(self._bucket, request))
        except Exception as error:  # noqa: BLE001 - the client's, raised again where it is no answer
            return _answer_of(error, request)
        if inspect.iscoroutine(response):
            response.close()
            raise InvalidArgument("the calls of this client are awaited: use AsyncFencedObject")
        if not isinstance(request, GetObject):
            return Outcome.STORED
        body = response["Body"]
        try:
            if request.into is None:
                return Got(body.read(), _etag(response))
            while chunk := body.read(CHUNK_BYTES):
                request.into.write(chunk)
            return Got(b"", _etag(response))
        finally:
            body.close()


class AsyncFencedObject(_Guarded):
    """The same, awaited, for a client whose calls are: aioboto3's or aiobotocore's."""

    async def get(self) -> bytes | None:
        """The content. None if nothing has been put, or it was deleted."""
        return await run_async(self._plans.get(), self._carry_out)

    async def download(self, file: BinaryIO) -> bool:
        """Copy the content into a binary file, in pieces. False if there is none."""
        return await run_async(self._plans.get(file), self._carry_out) is not None

    async def put(self, data: bytes | bytearray | memoryview | BinaryIO, lease_or_token: Presentable) -> None:
        """Replace the content, or raise ``StaleToken``; see ``FencedObject.put``."""
        await run_async(self._plans.put(self._checked(data), writing_mark(lease_or_token)), self._carry_out)

    async def delete(self, lease_or_token: Presentable) -> None:
        """Delete the content and keep the fence."""
        await run_async(self._plans.put(None, writing_mark(lease_or_token)), self._carry_out)

    async def advance(self, lease_or_token: Presentable) -> None:
        """Tell the guard of a new grant before the first ``get``: older holders are out from here on."""
        await run_async(self._plans.advance(advancing_mark(lease_or_token)), self._carry_out)

    async def newest(self) -> Fence | None:
        """The newest grant the guard has seen, None if none."""
        mark = await run_async(self._plans.newest(), self._carry_out)
        return None if mark is None else mark.fence

    async def move(self, source: str) -> None:
        """Hand the object to another source of tokens, deliberately."""
        await run_async(self._plans.move(checked_source(source)), self._carry_out)

    async def _carry_out(self, request: Any) -> Any:
        if isinstance(request, Pause):
            import asyncio

            await asyncio.sleep(request.seconds)
            return None
        called = getattr(self._s3, _METHODS[type(request)])
        try:
            pending = called(**_keywords(self._bucket, request))
        except Exception as error:
            raise InvalidArgument(_NOT_AWAITED) from error
        if not inspect.isawaitable(pending):
            raise InvalidArgument(_NOT_AWAITED)
        try:
            response: Any = await pending
        except Exception as error:  # noqa: BLE001 - the client's, raised again where it is no answer
            return _answer_of(error, request)
        if not isinstance(request, GetObject):
            return Outcome.STORED
        body = response["Body"]
        try:
            if request.into is None:
                return Got(await body.read(), _etag(response))
            while chunk := await body.read(CHUNK_BYTES):
                request.into.write(chunk)
            return Got(b"", _etag(response))
        finally:
            body.close()


_NOT_AWAITED: Final = "the calls of this client are not awaited: use FencedObject"

_METHODS: Final[Mapping[type, str]] = {
    GetObject: "get_object",
    PutObject: "put_object",
    DeleteObject: "delete_object",
}


def _keywords(bucket: str, request: Any) -> dict[str, Any]:
    keywords: dict[str, Any] = {"Bucket": bucket, "Key": request.key}
    if isinstance(request, GetObject) and request.most is not None:
        keywords["Range"] = f"bytes=0-{request.most - 1}"
    if isinstance(request, PutObject):
        keywords["Body"] = request.body
        keywords |= {"IfNoneMatch": "*"} if request.etag is None else {"IfMatch": request.etag}
    return keywords


def _answer_of(error: Exception, request: Any) -> Any:
    """What an error means for the plan. Raises it where it means nothing to it."""
    status, code = _status_and_code(error)
    if isinstance(request, GetObject):
        if code in ("NoSuchKey", "404"):
            return None
        if status == 416:
            return Got(b"", "")  # It is empty.
        raise error
    if isinstance(request, PutObject):
        if status == 412 or (status == 404 and code == "NoSuchKey"):
            return Outcome.CHANGED
        if status == 409:
            return Outcome.BUSY
        _refuse_without_conditions(error, status)
        if status is None or status >= 500:
            error.add_note(
                "holdfast: whether this write was stored is not known: put it again with the same lease"
            )
    raise error


def _status_and_code(error: Exception) -> tuple[int | None, str]:
    """Of an error as botocore raises them."""
    response = getattr(error, "response", None)
    if not isinstance(response, Mapping):
        return None, ""
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return (status if isinstance(status, int) else None), str(response.get("Error", {}).get("Code", ""))


def _refuse_without_conditions(error: Exception, status: int | None) -> None:
    if status == 501:
        raise Unsupported(
            "this store does not have conditional PUTs (it answered 501 to If-Match or If-None-Match), so no"
            " guard is possible there: keep the fence in a database, or use another store"
        ) from error
    if type(error).__name__ == "ParamValidationError" and re.search(r"\bIf(None)?Match\b", str(error)):
        raise Unsupported(
            "this client does not know conditional PUTs (IfMatch, IfNoneMatch): boto3 1.36 or later does"
        ) from error


def _etag(response: Mapping[str, Any]) -> str:
    etag = response.get("ETag")
    if not isinstance(etag, str) or not etag:
        raise Unsupported("this store gives objects no ETag, so no write can be made conditional on one")
    return etag
