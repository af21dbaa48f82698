"""Requests that kazoo lacks: containers, and multis that create containers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from kazoo.exceptions import EXCEPTIONS
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Create2,
    Delete,
    Exists,
    GetChildren2,
    GetData,
    MultiHeader,
    SetData,
    Sync,
    int_struct,
    multiheader_struct,
    read_string,
    stat_struct,
)
from kazoo.protocol.states import ZnodeStat

__all__ = [
    "EPHEMERAL",
    "SEQUENTIAL",
    "CheckVersion",
    "Create",
    "CreateContainer",
    "Delete",
    "Exists",
    "GetChildren2",
    "GetData",
    "Multi",
    "SetData",
    "Sync",
    "writes",
]

PERSISTENT: Final = 0
EPHEMERAL: Final = 1
SEQUENTIAL: Final = 2
CONTAINER: Final = 4


@dataclass(slots=True)
class CreateContainer:
    """A node that the server deletes some time after its last child. Since ZooKeeper 3.5.1."""

    path: str
    data: bytes
    acl: list[Any]
    type: ClassVar[int] = 19

    def serialize(self) -> Any:
        return Create(self.path, self.data, self.acl, CONTAINER).serialize()

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> Any:
        return read_string(data, offset)[0]


@dataclass(slots=True)
class Multi:
    """All operations or none. The answer has one entry for each: a path, a stat, True or an exception."""

    operations: tuple[Any, ...]
    type: ClassVar[int] = 14

    def serialize(self) -> Any:
        parts = bytearray()
        for operation in self.operations:
            parts += MultiHeader(operation.type, False, -1).serialize()
            parts += operation.serialize()
        return parts + multiheader_struct.pack(-1, True, -1)

    @classmethod
    def deserialize(cls, data: bytes, offset: int) -> list[Any]:
        results: list[Any] = []
        while True:
            header, offset = MultiHeader.deserialize(data, offset)
            if header.done:
                return results
            result: Any = True
            if header.type == -1:
                result = EXCEPTIONS[int_struct.unpack_from(data, offset)[0]]()
                offset += int_struct.size
            elif header.type == Create.type:
                result, offset = read_string(data, offset)
            elif header.type == Create2.type:  # that of a container
                result, offset = read_string(data, offset)
                offset += stat_struct.size
            elif header.type == SetData.type:
                result = ZnodeStat._make(stat_struct.unpack_from(data, offset))
                offset += stat_struct.size
            results.append(result)


_WRITES: Final = (Create.type, CreateContainer.type, Delete.type, SetData.type, Multi.type)


def writes(request: Any) -> bool:
    """Whether the request goes through the leader and a majority."""
    return request.type in _WRITES
