"""The committed stubs are what wire.proto says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from holdfast.engines.etcd import wire_pb2 as wire
from holdfast.engines.etcd.rpc import KEEP_ALIVE, METHODS, WATCH
from support import run_python
from tidy.source import ROOT

pytestmark = pytest.mark.timeless


def test_the_stubs_are_current() -> None:
    """What was generated and what would be generated describe the same messages."""
    path = ROOT / "tools" / "generate_etcd_stubs.py"
    spec = importlib.util.spec_from_file_location("generate_etcd_stubs", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    description, hints = tool.compile_proto()
    target = ROOT / "src" / "holdfast" / "engines" / "etcd" / "wire_pb2.py"
    assert target.read_text("utf-8") == tool.module(description), "run python tools/generate_etcd_stubs.py"
    assert Path(target).with_suffix(".pyi").read_text("utf-8") == hints


@pytest.mark.parametrize("method", [*METHODS.values(), KEEP_ALIVE, WATCH], ids=lambda method: method.path)
def test_every_message_survives_the_wire(method: object) -> None:
    for message in (method.request, method.response):  # type: ignore[attr-defined]  # a Method
        assert message.FromString(message().SerializeToString()) == message()


@pytest.mark.realtime
def test_another_librarys_messages_do_not_clash_with_ours() -> None:
    """They live in a pool of their own: the same names, differently described, are nobody's business."""
    code = """
    from google.protobuf import descriptor_pb2, descriptor_pool
    import holdfast.engines.etcd.wire_pb2 as ours
    theirs = descriptor_pb2.FileDescriptorProto(name=ours.DESCRIPTOR.name, package=ours.DESCRIPTOR.package)
    theirs.message_type.add(name="RangeRequest")
    descriptor_pool.Default().AddSerializedFile(theirs.SerializeToString())
    print("fine", ours.RangeRequest(key=b"x").key, flush=True)
    """
    with run_python(code) as child:
        assert child.expect("fine") == "b'x'"


def test_numbers_are_those_of_the_public_api() -> None:
    """A few that would do harm if they were wrong."""
    request = wire.TxnRequest(
        compare=[wire.Compare(target=wire.Compare.CREATE, key=b"k", create_revision=0)],
        success=[wire.RequestOp(request_put=wire.PutRequest(key=b"k", value=b"v", lease=7))],
    )
    assert request.SerializeToString() == (
        b"\n\x07\x10\x01\x1a\x01k(\x00" + b"\x12\x0a\x12\x08\n\x01k\x12\x01v\x18\x07"
    )
