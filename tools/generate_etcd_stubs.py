"""Writes src/holdfast/engines/etcd/wire_pb2.py and .pyi from wire.proto, with the compiler of grpcio-tools.

    python tools/generate_etcd_stubs.py            write them
    python tools/generate_etcd_stubs.py --check    say whether they are current

What protoc writes for Python runs only on the protobuf runtime of its own version or a newer one. All that
is needed is the description of the messages, and every runtime makes classes from that: so the module
written here holds the description and asks the public API for the classes. It keeps them in a pool of its
own, where another library's etcd messages cannot clash with them.
"""

from __future__ import annotations

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

SOURCE = Path(__file__).resolve().parent.parent / "src"
PROTO = Path("holdfast/engines/etcd/wire.proto")

MODULE = '''"""The messages of etcd's wire API, made from wire.proto: see tools/generate_etcd_stubs.py."""

from google.protobuf import descriptor_pool as _descriptor_pool
from google.protobuf import message_factory as _message_factory

_FILE = (
{description}
)

_pool = _descriptor_pool.DescriptorPool()
_pool.AddSerializedFile(_FILE)
DESCRIPTOR = _pool.FindFileByName({name!r})


def _message(name):
    return _message_factory.GetMessageClass(DESCRIPTOR.message_types_by_name[name])


{messages}
'''


def main(arguments: list[str]) -> int:
    stale = [
        path for path, text in generated().items() if not path.is_file() or path.read_text("utf-8") != text
    ]
    for path in stale:
        shown = path.relative_to(SOURCE.parent)
        if "--check" in arguments:
            print(f"{shown} is not current: run python tools/generate_etcd_stubs.py", file=sys.stderr)
        else:
            path.write_text(generated()[path], "utf-8")
            print(f"wrote {shown}")
    return 1 if stale and "--check" in arguments else 0


def generated() -> dict[Path, str]:
    """What the files should hold."""
    target = SOURCE / PROTO.with_name("wire_pb2.py")
    description, hints = compile_proto()
    return {target: module(description), target.with_suffix(".pyi"): hints}


def compile_proto() -> tuple[descriptor_pb2.FileDescriptorProto, str]:
    """The description of the messages, and their type hints."""
    with tempfile.TemporaryDirectory() as folder:
        described = Path(folder, "descriptor_set")
        status = protoc.main(
            [
                "protoc",
                f"--proto_path={SOURCE}",
                f"--proto_path={files('grpc_tools') / '_proto'}",
                f"--descriptor_set_out={described}",
                f"--pyi_out={folder}",
                str(PROTO),
            ]
        )
        if status != 0:
            raise SystemExit(f"protoc failed with status {status}")
        (description,) = descriptor_pb2.FileDescriptorSet.FromString(described.read_bytes()).file
        hints = Path(folder, PROTO.with_name("wire_pb2.pyi")).read_text("utf-8")
        hints = hints.replace("_Mapping]", "_Mapping[str, object]]")  # a strict checker wants to know
    return description, hints


def module(description: descriptor_pb2.FileDescriptorProto) -> str:
    data = description.SerializeToString()
    lines = [f"    {data[start : start + 40]!r}" for start in range(0, len(data), 40)]
    names = [message.name for message in description.message_type]
    return MODULE.format(
        description="\n".join(lines),
        name=description.name,
        messages="\n".join(f"{name} = _message({name!r})" for name in names),
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
