"""``holdfast doctor`` on real servers: what is well, what is not, and what each exits with."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

import holdfast
from cli.tools import CommandLine
from faults.redlock_nodes import nodes
from holdfast import doctor, provision
from holdfast.doctor import Finding
from holdfast.engines import findings
from holdfast.lab.servers import Etcd, PostgreSQL, Redis
from support.servers import (
    shared_etcd,
    shared_etcd_cluster,
    shared_pgbouncer,
    shared_postgresql,
    shared_redis,
    shared_redis_cluster,
    shared_redis_tls,
    shared_sentinel,
    shared_valkey,
    shared_zookeeper,
    shared_zookeeper_ensemble,
)

RIGHTS = "~holdfast:* &holdfast:* resetkeys ~holdfast:* -@all +evalsha +script|load +get +set +time +scan"
RIGHTS += " +publish +subscribe +ping +info|memory"


def examined(url: str) -> dict[str, Finding]:
    return {each.topic: each for each in doctor.examine(url)}


def statuses(found: Mapping[str, Finding]) -> dict[str, str]:
    return {topic: each.status for topic, each in found.items()}


# The command


def test_text_json_and_status(command_line: CommandLine) -> None:
    told = json.loads(command_line.start("doctor", "--json").succeed())
    assert {each["status"] for each in told} <= {"ok", "unknown"}
    said = command_line.start("doctor").succeed()
    for each in told:
        assert each["topic"] in said
        assert each["text"] in said


def test_problems_are_1(command_line: CommandLine) -> None:
    process = command_line.finish("doctor", "--url", "memory://")
    assert process.returncode == 1
    assert "no other process" in process.stdout


@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param("redis", marks=pytest.mark.engine("redis")),
        pytest.param("redlock", marks=pytest.mark.engine("redlock")),
        pytest.param("etcd", marks=pytest.mark.engine("etcd")),
        pytest.param("zookeeper", marks=pytest.mark.engine("zookeeper")),
        pytest.param("postgresql", marks=pytest.mark.engine("postgresql")),
    ],
)
def test_out_of_reach_is_69(command_line: CommandLine, scheme: str) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens there, and nobody else can
        host = f"127.0.0.1:{bound.getsockname()[1]}"
        hosts = f"{host},127.0.0.2:1,127.0.0.3:1" if scheme == "redlock" else host
        user = "user:hunter2-secret@" if scheme != "zookeeper" else ""
        process = command_line.finish(
            "doctor", "--io-timeout", "1", env={"HOLDFAST_URL": f"{scheme}://{user}{hosts}"}
        )
    assert process.returncode == 69, process.stderr
    assert len(process.stderr_lines) == 1
    assert "hunter2-secret" not in process.stderr


# Engines


def test_sqlite(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    assert "write-ahead log" in examined(url)["database"].text, "prepared as the first lock does it"
    with holdfast.connect(url) as locks, locks.lock("x"):
        found = examined(url)
    assert set(statuses(found).values()) == {"ok"}
    assert str(tmp_path) in found["path"].text
    assert "0600" in found["owner"].text
    assert "write-ahead log" in found["database"].text
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"nonsense" * 1000)
    assert examined(f"sqlite:///{damaged}")["database"].status == "fail"
    tmp_path.chmod(0o777)
    with pytest.raises(holdfast.EngineUnavailable, match="every user can replace"):
        doctor.examine(url)


@pytest.mark.engine("redis")
def test_redis() -> None:
    found = examined(shared_redis().url)
    assert statuses(found) == {
        "connection": "ok",
        "clock": "ok",
        "version": "ok",
        "rights": "warn",
        "eviction": "ok",
        "persistence": "warn",
        "replicas": "ok",
    }
    assert "does not leave this machine" in found["connection"].text
    assert "as the user 'default'" in found["rights"].text
    assert "appendonly yes" in found["persistence"].text


@pytest.mark.engine("redis")
def test_redis_with_trouble_and_with_few_rights() -> None:
    settings = {"maxmemory-policy": "allkeys-lru", "appendonly": "yes", "appendfsync": "always"}
    acl = {
        "few": f"on >few {RIGHTS}",
        "fewer": f"on >few {RIGHTS} -publish -script",
        "more": f"on >few {RIGHTS} +eval +client|kill",
    }
    with Redis(maxmemory="50mb", settings=settings, acl=acl) as server:
        found = examined(server.url)
        assert found["eviction"].status == "fail"
        assert "noeviction" in found["eviction"].text
        assert found["persistence"] == findings.ok(
            "persistence", "append-only file, on disk with every grant"
        )
        few = examined(f"redis://few:few@{server.address}")
        assert (few["rights"].status, few["persistence"].status) == ("ok", "unknown")
        fewer = examined(f"redis://fewer:few@{server.address}")["rights"]
        assert fewer.status == "fail"
        assert "+script|load +publish" in fewer.text
        more = examined(f"redis://more:few@{server.address}")["rights"]
        assert (more.status, "+eval, +client|kill" in more.text) == ("warn", True)
        few_url = f"redis://few:few@{server.address}"
        with holdfast.connect(few_url) as locks, locks.lock("x", timeout=5):
            pass
        assert not server.command("KEYS", "*doctor*")
        with Redis(replica_of=server) as replica:
            with pytest.raises(holdfast.EngineUnavailable, match="read-only replica"):
                doctor.examine(replica.url)
            assert "do not wait for them" in examined(server.url)["replicas"].text
            waiting = examined(f"{server.url}?wait_replicas=2")["replicas"]
            assert waiting.status == "fail"


@pytest.mark.engine("redis")
def test_a_clock_that_differs() -> None:
    with Redis(faketime=True) as server:
        server.shift_clock(-3600.0)
        found = examined(server.url)["clock"]
    assert found.status == "warn"
    assert "behind this machine's" in found.text


@pytest.mark.engine("redis")
def test_redis_over_tls() -> None:
    server = shared_redis_tls()
    ca = quote(str(server.certificates.authority), safe="")
    found = examined(f"{server.url}?ssl_ca_certs={ca}")
    assert found["connection"].text == "encrypted, and the server's certificate is verified"
    found = examined(f"{server.url}?ssl_cert_reqs=none&ssl_check_hostname=false")
    assert "not verified" in found["connection"].text


@pytest.mark.engine("redis")
def test_valkey_sentinel_and_cluster() -> None:
    sentinels = shared_sentinel()
    assert "Valkey" in examined(shared_valkey().url)["version"].text
    assert (
        examined(f"redis+sentinel://{sentinels.addresses}?service={sentinels.service}")["replicas"].status
        == "warn"
    )
    found = examined(f"redis+cluster://{shared_redis_cluster().addresses}")
    assert sum(topic.startswith("clock ") for topic in found) == 3
    assert all(each.status == "ok" for topic, each in found.items() if topic.startswith(("clock", "version")))


@pytest.mark.engine("redlock")
def test_redlock_node_by_node() -> None:
    with nodes(3) as three:
        url = three.url()
        with holdfast.connect(url) as locks, locks.lock("x", timeout=5):
            pass
        found = examined(url)
        assert found["nodes"].status == "ok"
        for proxy in three.proxies:
            assert found[f"membership {proxy.address}"].status == "ok"
            assert found[f"clock {proxy.address}"].status == "ok"
            assert found[f"persistence {proxy.address}"].status in ("ok", "warn")
        three.servers[1].stop()
        found = examined(url)
        assert found["nodes"].text.startswith("2 of 3")
        assert found[f"connection {three.proxies[1].address}"].status == "fail"
        assert found[f"membership {three.proxies[1].address}"].status == "fail"


@pytest.mark.engine("postgresql")
def test_postgresql() -> None:
    found = examined(shared_postgresql().url)
    assert found["role"].status == "warn"
    assert "superuser" in found["role"].text
    assert found["pooler"].status == found["clock"].status == found["version"].status == "ok"
    assert found["fsync"].status in ("ok", "fail")
    assert found["pooler"] != examined(shared_pgbouncer().url)["pooler"]


@pytest.mark.engine("postgresql")
def test_postgresql_with_trouble() -> None:
    settings = {"fsync": "off", "synchronous_commit": "off"}
    with PostgreSQL(settings=settings, tls=True) as server:
        server.sql("CREATE ROLE app LOGIN")
        server.sql("REVOKE CREATE ON DATABASE postgres FROM PUBLIC")
        ca = quote(str(server.certificates.authority), safe="")
        host = f"postgresql://app@{server.address}/postgres"
        found = examined(f"{host}?sslmode=verify-full&sslrootcert={ca}")
        assert found["connection"].text == "encrypted, and the server's certificate is verified"
        assert (found["fsync"].status, found["synchronous_commit"].status) == ("fail", "fail")
        assert found["role"].status == "ok"
        assert found["schema"].status == "fail"
        assert "holdfast init" in found["schema"].text
        provision.install(server.url)
        server.sql("REVOKE ALL ON SCHEMA holdfast FROM PUBLIC")
        assert "GRANT USAGE ON SCHEMA holdfast TO app" in examined(host)["rights"].text
        advisory = f"postgresql+advisory://postgres@{server.address}/postgres"
        assert examined(advisory)["schema"].status == "ok"


@pytest.mark.engine("etcd")
def test_etcd() -> None:
    found = examined(f"etcd://{shared_etcd().address}")
    assert found["alarms"] == findings.ok("alarms", "none")
    assert found["members"].status == found["rights"].status == "warn"
    assert found["clock"].status == found["health"].status == "ok"
    cluster = examined(f"etcd://{shared_etcd_cluster().addresses}")
    assert cluster["members"].text == "3: tolerates the loss of 1"
    assert sum(topic.startswith("version ") for topic in cluster) == 3


@pytest.mark.engine("etcd")
def test_etcd_with_users() -> None:
    with Etcd(users={"root": "secret", "app": "few"}) as server:
        for user, status in (
            ("root:secret@", "warn"),
            ("app:few@", "ok"),
            ("app:wrong@", "fail"),
            ("", "fail"),
        ):
            assert examined(f"etcd://{user}{server.address}")["rights"].status == status, user
        server.call("/v3/auth/user/revoke", {"name": "app", "role": "everything"})
        assert "grant-permission" in examined(f"etcd://app:few@{server.address}")["rights"].text
        assert not server.call("/v3/kv/range", {"key": "AA==", "range_end": "AA=="}).get("kvs")


@pytest.mark.engine("etcd")
def test_etcd_over_tls() -> None:
    with Etcd(tls=True) as server:
        made = server.certificates
        files = {"ca": made.authority, "cert": made.certificate, "key": made.key}
        found = examined(f"etcd://{server.address}?{urlencode(files)}")
        assert found["connection"].text == "encrypted, and the server's certificate is verified"
        assert found["rights"].status == "ok"


@pytest.mark.engine("zookeeper")
def test_zookeeper() -> None:
    server = shared_zookeeper()
    prefix = f"doctor-{os.getpid()}"
    found = examined(f"zookeeper://{server.address}/{prefix}")
    assert found["mode"].status == "warn"
    assert found["rights"].status == "unknown"
    with holdfast.connect(f"zookeeper://{server.address}/{prefix}") as locks, locks.lock("x", timeout=10):
        pass
    found = examined(f"zookeeper://{server.address}/{prefix}")
    assert (found["clock"].status, found["rights"].status) == ("ok", "warn")
    assert found["version"].status == "ok"
    found = examined(f"zookeeper://{shared_zookeeper_ensemble().addresses}")
    modes = sorted(each.text for topic, each in found.items() if topic.startswith("mode "))
    assert modes == ["follower", "follower", "leader"]


# What all say in the same words


def test_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "wall_seconds", lambda: 1000.0)
    assert findings.clock("clock", lambda: 1000.0).status == "ok"
    behind = findings.clock("clock", lambda: 990.0)
    assert (behind.status, "10.000 s behind" in behind.text) == ("warn", True)
    assert "0.500 s ahead of" in findings.clock("clock", lambda: 1000.5).text
    assert findings.clock("clock", lambda: 1000.0, precision=0.5).status == "ok"


@pytest.mark.parametrize(
    ("host", "encrypted", "is_verified", "status"),
    [
        ("db.example.org", False, False, "warn"),
        ("db.example.org", True, False, "warn"),
        ("db.example.org", True, True, "ok"),
        ("10.0.0.1", False, False, "warn"),
        ("127.0.0.2", False, False, "ok"),
        ("::1", False, False, "ok"),
        ("/run/redis.sock", False, False, "ok"),
    ],
)
def test_connections(host: str, encrypted: bool, is_verified: bool, status: str) -> None:
    assert findings.connection("connection", host, encrypted, is_verified, "use TLS").status == status
