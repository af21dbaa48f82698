"""``holdfast fence probe``: whether an object store is one that a guard can rely on."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from holdfast import errors

from .exits import Status
from .options import JSON, Argument, Command, Option, number
from .output import print_json, print_lines

__all__ = ["PROBE", "probe"]

EPILOG = """
Examples:
  holdfast fence probe s3://shop
  holdfast fence probe s3://shop/scratch/ --endpoint-url http://10.0.0.7:9000
  holdfast fence probe s3://shop --json | jq .atomic

Credentials and region are found as by AWS's own tools: AWS_PROFILE,
AWS_ACCESS_KEY_ID, ~/.aws. The probe's objects have new names, below the key if
one is given, and are deleted at the end.

Exit status: 0 when no race had two winners, 1 when the store cannot carry a
guard, 69 when it cannot be reached or refuses the credentials.
"""

PLACE = Argument("place", "The bucket, and the prefix of the probe's objects: s3://BUCKET/KEY.")
ENDPOINT_URL = Option(
    ("--endpoint-url",),
    "The address of the store, if it is not AWS. It may be given several times, for gateways of one store: "
    "each race uses all of them.",
    metavar="URL",
    many=True,
)
ROUNDS = Option(
    ("--rounds",),
    "The number of objects to race for, each twice: to create it and to replace it.",
    metavar="N",
    convert=number(1, 10_000),
    default=25,
    shown_default="25",
)
WRITERS = Option(
    ("--writers",),
    "Writers in each race.",
    metavar="N",
    convert=number(2, 64),
    default=8,
    shown_default="8",
)


def probe(place: str, endpoint_url: list[str], rounds: int, writers: int, json: bool) -> int:
    """Race conditional writes on an object store, and say whether its check is atomic.

    A guard for objects rests on PUTs with If-Match and If-None-Match. A store that ignores them, or that
    checks first and writes later, lets a stale holder overwrite a newer one. The races can show that; if
    none had two winners, that is not a proof.
    """
    from holdfast.fencing.object_probe import probe_store

    bucket, prefix = bucket_and_prefix(place)
    endpoints: list[str | None] = [*endpoint_url] or [None]
    clients = [client_for(url, writers) for url in endpoints]
    try:
        found = probe_store(clients, bucket, prefix, rounds=rounds, writers=writers)
    except Exception as error:
        # botocore's errors share no base that says whether the store was reached; each says what happened.
        if type(error).__module__.partition(".")[0] not in ("botocore", "boto3"):
            raise
        raise errors.EngineUnavailable(f"{place}: {error}") from error
    finally:
        for client in clients:
            client.close()
    if json:
        print_json(found.as_dict())
    else:
        print_lines(*in_words(found))
    return Status.OK if found.is_atomic else Status.NOTHING_DONE


def bucket_and_prefix(place: str) -> tuple[str, str]:
    parts = urlsplit(place)
    if parts.scheme != "s3" or not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
        raise errors.InvalidArgument(f"{place!r} names no bucket: write s3://BUCKET or s3://BUCKET/KEY")
    return parts.netloc, parts.path.removeprefix("/")


def client_for(endpoint_url: str | None, writers: int) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError as error:
        raise errors.EngineUnavailable("to talk to an object store: pip install 'holdfast[s3]'") from error
    # A PUT that botocore sends again by itself would be refused for what its first try stored.
    config = Config(retries={"total_max_attempts": 1}, max_pool_connections=writers + 1)
    try:
        return boto3.client("s3", endpoint_url=endpoint_url, config=config)
    except ValueError as error:
        raise errors.InvalidArgument(f"--endpoint-url: {error}") from error


def in_words(found: Any) -> list[str]:
    if not (found.checks_if_none_match and found.checks_if_match):
        ignored = [
            name
            for name, is_checked in [
                ("If-None-Match", found.checks_if_none_match),
                ("If-Match", found.checks_if_match),
            ]
            if not is_checked
        ]
        return [f"no guard is possible: the store ignores or refuses {' and '.join(ignored)} of a PUT"]
    several = found.several_created + found.several_replaced
    tried = f"{found.races} races of {found.writers} writers"
    if several:
        lines = [f"not atomic: in {several} of {tried} more than one PUT was reported as stored"]
    else:
        lines = [f"atomic, as far as {tried} can tell: none had two winners"]
    if found.none_stored:
        lines.append(f"in {found.none_stored} races all were refused, so writers will have to try again")
    if found.unclear:
        lines.append(f"in {found.unclear} races the store failed to answer a writer")
    if found.has_content_etag:
        lines.append(
            "an ETag is a hash of the content, so it is no version: a token belongs into the content"
        )
    return lines


PROBE = Command(probe, (PLACE, ENDPOINT_URL, ROUNDS, WRITERS, JSON), EPILOG)
