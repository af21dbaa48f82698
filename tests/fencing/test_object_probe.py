"""The probe of object stores: it tells stores that check and write in one step from those that do not."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import boto3
import pytest

from fencing.fake_s3 import MemoryS3, RefusedByStore
from holdfast.cli.exits import Status
from holdfast.cli.fence_probe import bucket_and_prefix, client_for
from holdfast.errors import EngineUnavailable, InvalidArgument
from holdfast.fencing.object_probe import probe_store
from support import Process, run_python
from support.servers import shared_seaweedfs

pytestmark = pytest.mark.realtime

WRITERS = 4


class OneStep(MemoryS3):
    """Checks and stores under a lock."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def put_object(self, **keywords: Any) -> dict[str, Any]:
        with self._lock:
            return super().put_object(**keywords)


class TwoSteps(MemoryS3):
    """Checks, and stores when all others have checked too."""

    def __init__(self) -> None:
        super().__init__()
        self._checked = threading.Barrier(WRITERS)

    def put_object(self, **keywords: Any) -> dict[str, Any]:
        is_racing = not keywords["Key"].endswith("first")
        found = MemoryS3()
        found.objects = dict(self.objects)
        with suppress(threading.BrokenBarrierError):
            try:
                found.put_object(**keywords)
            finally:
                if is_racing:
                    self._checked.wait(20)
        return super().put_object(Bucket="", Key=keywords["Key"], Body=keywords["Body"])


class Ignoring(MemoryS3):
    def put_object(self, **keywords: Any) -> dict[str, Any]:
        asked = {name: keywords[name] for name in ("Bucket", "Key", "Body")}
        return super().put_object(**asked)


class Refusing(MemoryS3):
    def put_object(self, **keywords: Any) -> dict[str, Any]:
        raise RefusedByStore(501, "NotImplemented")


def test_a_store_that_checks_and_stores_in_one_step() -> None:
    store = OneStep()
    found = probe_store([store], "shop", "scratch/", rounds=5, writers=WRITERS)
    assert found.is_atomic
    assert (found.races, found.none_stored, found.unclear, found.has_content_etag) == (10, 0, 0, True)
    assert store.objects == {}, "it leaves nothing behind"
    assert all(call.split()[1].startswith("scratch/holdfast-probe-") for call in store.calls)


def test_a_store_that_checks_first_and_stores_then() -> None:
    found = probe_store([TwoSteps()], "shop", rounds=3, writers=WRITERS)
    assert not found.is_atomic
    assert (found.several_created, found.several_replaced) == (3, 3)


def test_stores_without_conditions() -> None:
    ignoring = probe_store([Ignoring()], "shop", writers=WRITERS)
    assert (ignoring.checks_if_none_match, ignoring.checks_if_match, ignoring.races) == (False, False, 0)
    assert not probe_store([Refusing()], "shop", writers=WRITERS).is_atomic


def test_an_error_of_the_stores_reaches_the_caller() -> None:
    store = OneStep()

    def refuse(key: str) -> None:
        raise RefusedByStore(403, "AccessDenied")

    store.before_put = refuse
    with pytest.raises(RefusedByStore):
        probe_store([store], "shop", writers=WRITERS)


def test_a_race_in_which_a_writer_is_not_answered() -> None:
    store = OneStep()
    failing = [True]

    def fail_once(key: str) -> None:
        if not key.endswith("first") and failing:
            failing.clear()
            raise TimeoutError

    store.before_put = fail_once
    found = probe_store([store], "shop", rounds=2, writers=WRITERS)
    assert (found.unclear, found.is_atomic) == (1, True)


def test_arguments() -> None:
    for rounds, writers in [(0, 2), (1, 1)]:
        with pytest.raises(InvalidArgument):
            probe_store([OneStep()], "shop", rounds=rounds, writers=writers)
    assert bucket_and_prefix("s3://Shop/a/b") == ("Shop", "a/b")
    for place in ("shop", "s3://", "http://shop", "s3://user:secret@shop", "s3://shop?x=1"):
        with pytest.raises(InvalidArgument, match="write s3://BUCKET"):
            bucket_and_prefix(place)
    with pytest.raises(InvalidArgument, match="endpoint"):
        client_for("no url", 2)


def test_without_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(EngineUnavailable, match=r"pip install 'holdfast\[s3\]'"):
        client_for(None, 2)


# The command


def finish(*arguments: str, env: dict[str, str]) -> Process:
    with run_python(None, "fence", "probe", *arguments, module="holdfast", env=env) as process:
        process.close_stdin()
        process.wait(60)
    return process


def test_the_command_on_a_real_store() -> None:
    server = shared_seaweedfs()
    env = dict(server.environment())
    process = finish(f"s3://{server.bucket}/probed/", "--rounds", "1", "--writers", "3", "--json", env=env)
    found = json.loads(process.stdout)
    assert (process.returncode, found["atomic"], found["races"]) == (Status.OK, True, 2)
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name=server.region,
    )
    assert "Contents" not in client.list_objects_v2(Bucket=server.bucket, Prefix="probed/")
    client.close()
    wrong = finish("s3://missing", env=env)
    assert (wrong.returncode, "NoSuchBucket" in wrong.stderr) == (Status.UNAVAILABLE, True), wrong.stderr


MOTO = """
    import logging, sys, time
    import boto3, moto.s3.models
    from moto.server import ThreadedMotoServer

    put_object = moto.s3.models.S3Backend.put_object

    def put_slowly(*arguments, **keywords):
        # As moto is, only slower: it has checked the condition, and holds no lock until it stores.
        time.sleep(0.1)
        return put_object(*arguments, **keywords)

    moto.s3.models.S3Backend.put_object = put_slowly
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    boto3.client("s3", endpoint_url=url).create_bucket(Bucket="shop")
    print("url", url)
    sys.stdin.read()
"""

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "y",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture
def moto_url() -> Iterator[str]:
    """A store that checks without a lock."""
    with run_python(MOTO, env=CREDENTIALS) as server:
        yield server.expect("url", timeout=60)


def test_the_command_on_a_store_that_checks_without_a_lock(moto_url: str) -> None:
    arguments = ("s3://shop", "--endpoint-url", moto_url, "--rounds", "2", "--writers", "4")
    process = finish(*arguments, env=CREDENTIALS)
    assert process.returncode == Status.NOTHING_DONE, process.stderr
    assert "not atomic: in " in process.stdout


def test_the_command_where_no_store_is() -> None:
    process = finish("s3://shop", "--endpoint-url", "http://127.0.0.1:1", env=CREDENTIALS)
    assert process.returncode == Status.UNAVAILABLE
    assert "Could not connect" in process.stderr
