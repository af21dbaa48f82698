"""An object store in memory with the shape of boto3's client, and one whose calls are awaited."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from typing import Any

__all__ = ["AwaitedS3", "MemoryS3", "RefusedByStore"]


class RefusedByStore(Exception):
    """What botocore's ClientError is to a guard."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": code}}


class MemoryS3:
    """Checks conditions and stores in one step. ``before_put`` runs first: another writer, or an error."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.before_put: Callable[[str], None] = lambda key: None
        self.after_put: Callable[[str], None] = lambda key: None
        self.calls: list[str] = []

    def get_object(self, *, Bucket: str, Key: str, Range: str = "") -> dict[str, Any]:  # noqa: N803 - as boto3's
        self.calls.append(f"get {Key} {Range}".strip())
        if Key not in self.objects:
            raise RefusedByStore(404, "NoSuchKey")
        body = self.objects[Key]
        if Range:
            if not body:
                raise RefusedByStore(416, "InvalidRange")
            body = body[: int(Range.removeprefix("bytes=0-")) + 1]
        return {"Body": io.BytesIO(body), "ETag": self.etag(Key)}

    def put_object(
        self,
        *,
        Bucket: str,  # noqa: N803 - as boto3's
        Key: str,  # noqa: N803 - as above
        Body: Any,  # noqa: N803 - as above
        IfMatch: str | None = None,  # noqa: N803 - as above
        IfNoneMatch: str | None = None,  # noqa: N803 - as above
    ) -> dict[str, Any]:
        self.calls.append(f"put {Key}")
        self.before_put(Key)
        is_there = Key in self.objects
        if IfMatch is not None and not is_there:
            raise RefusedByStore(404, "NoSuchKey")
        if (IfNoneMatch == "*" and is_there) or (IfMatch is not None and IfMatch != self.etag(Key)):
            raise RefusedByStore(412, "PreconditionFailed")
        self.objects[Key] = Body if isinstance(Body, bytes) else Body.read()
        self.after_put(Key)
        return {"ETag": self.etag(Key)}

    def delete_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: N803 - as boto3's
        self.calls.append(f"delete {Key}")
        self.objects.pop(Key, None)
        return {}

    def etag(self, key: str) -> str:
        """As S3's: a hash of the content."""
        return f'"{hashlib.md5(self.objects[key], usedforsecurity=False).hexdigest()}"'


class AwaitedS3:
    """The same calls, awaited, of any client that blocks."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def get_object(self, **keywords: Any) -> dict[str, Any]:
        response: dict[str, Any] = self._client.get_object(**keywords)
        return response | {"Body": _AwaitedBody(response["Body"])}

    async def put_object(self, **keywords: Any) -> Any:
        return self._client.put_object(**keywords)

    async def delete_object(self, **keywords: Any) -> Any:
        return self._client.delete_object(**keywords)


class _AwaitedBody:
    def __init__(self, body: Any) -> None:
        self._body = body

    async def read(self, size: int = -1) -> bytes:
        found: bytes = self._body.read() if size < 0 else self._body.read(size)
        return found

    def close(self) -> None:
        self._body.close()
