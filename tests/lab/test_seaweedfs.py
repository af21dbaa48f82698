"""SeaweedFS as the lab starts it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from holdfast.lab.servers import SeaweedFS


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedFS]:
    with SeaweedFS(bucket="things") as server:
        yield server


@pytest.fixture
def s3(server: SeaweedFS, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    yield client
    client.close()


def put(s3: Any, key: str, body: bytes, **condition: str) -> str:
    etag: str = s3.put_object(Bucket="things", Key=key, Body=body, **condition)["ETag"]
    return etag


def test_what_is_written_outlives_a_kill(server: SeaweedFS, s3: Any) -> None:
    etag = put(s3, "x", b"1")
    server.restart(kill=True)
    found = s3.get_object(Bucket="things", Key="x")
    with found["Body"] as body:
        assert (body.read(), found["ETag"]) == (b"1", etag)


def test_conditional_writes_and_etags_that_hash_the_content(s3: Any) -> None:
    etag = put(s3, "y", b"1", IfNoneMatch="*")
    for condition in ({"IfNoneMatch": "*"}, {"IfMatch": '"another"'}):
        with pytest.raises(ClientError, match="PreconditionFailed"):
            put(s3, "y", b"2", **condition)
    assert put(s3, "y", b"1") == etag, "a version would have changed"


def test_it_listens_for_this_machine_alone_and_reports_to_nobody(server: SeaweedFS) -> None:
    line = server.command_line()
    assert {"-ip.bind=127.0.0.1", "-master.telemetry=false", f"-dir={server.data}"} <= set(line)
    with pytest.raises(ClientError, match=r"Forbidden|AccessDenied|InvalidAccessKeyId"):
        boto3.client(
            "s3", endpoint_url=server.endpoint_url, aws_access_key_id="x", aws_secret_access_key="y"
        ).list_objects_v2(Bucket="things")
