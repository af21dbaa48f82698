"""What surrounds the measurements: who is left out, what is counted."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from benchmarks.connections import connections_to, ports_to
from benchmarks.contestant import Contestant, Handle, MeasurementInvalid, Place, Role, check
from benchmarks.engines import Group
from benchmarks.engines.redis import serve as serve_redis
from benchmarks.interleaving import Bench
from benchmarks.measures import Measure
from benchmarks.results import Result
from benchmarks.running import GroupRun, Options
from benchmarks.service import Service
from holdfast.lab.servers.resp import ask

TWO_COMMANDS = "redis.call('SET', KEYS[1], 1) return redis.call('GET', KEYS[1])"


def never_opened(place: Place, name: str) -> Handle:
    raise AssertionError("nothing is measured here")


def contestant(key: str, role: Role) -> Contestant:
    return Contestant(key, key, role, never_opened)


SUBJECT, PEER, ANOTHER = contestant("ours", "subject"), contestant("x", "peer"), contestant("y", "peer")


def measured(failing: Contestant, folder: Path) -> tuple[Result, list[list[str]]]:
    """The result of a measurement in which one of the contestants fails, and who took part in each try."""
    tries: list[list[str]] = []

    def run(bench: Bench) -> Result:
        tries.append([each.key for each in bench.contestants])
        for each in bench.contestants:
            check(each != failing, "lost 3 increments of 8", each)
        return Result("pairs", "Pairs", "How.", (), [], ())

    group = Group("Test", (SUBJECT, PEER, ANOTHER), ("pairs",), {}, {"pairs": "A note."})
    group_run = GroupRun("memory", group, Options(["pairs"], None, None, True), folder)
    measure = Measure(run, 1.0)
    bench = group_run.bench(measure, "pairs", Service(), lambda done_seconds, doing: None)
    return group_run.measured(measure, bench), tries


def test_a_peer_that_fails_is_left_out_and_the_others_are_measured_again(tmp_path: Path) -> None:
    result, tries = measured(PEER, tmp_path)
    assert tries == [["ours", "x", "y"], ["ours", "y"]]
    assert result.left_out == {"x": "x lost 3 increments of 8"}
    assert result.how == "How.\nA note."


def test_where_the_subject_fails_the_measurement_does(tmp_path: Path) -> None:
    with pytest.raises(MeasurementInvalid, match="ours lost 3 increments"):
        measured(SUBJECT, tmp_path)


def test_connections_are_those_of_this_process_to_the_servers_named() -> None:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        ports = [server.getsockname()[1] for server in servers]
        addresses = [f"127.0.0.1:{port}" for port in ports]
        assert connections_to(addresses) == 0
        for port in (ports[0], ports[0], ports[1]):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert connections_to(addresses) == 3
        assert connections_to(addresses[1:]) == 1


@pytest.mark.engine("redis")
def test_redis_counts_what_clients_ask_and_not_what_scripts_do() -> None:
    with serve_redis() as service:
        host, _, port = service.addresses[0].rpartition(":")
        with socket.create_connection((host, int(port))) as client:
            ask(client, ("PING",))
            requests, scripts = service.requests(), service.scripts()
            for _ in range(3):
                ask(
                    client,
                    ("EVAL", "redis.call('SET', KEYS[1], 1) return redis.call('GET', KEYS[1])", 1, "x"),
                )
            ask(client, ("GET", "x"))
            assert service.requests() == (requests or 0) + 4
            assert service.scripts() == (scripts or 0) + 3


@pytest.mark.engine("redis")
def test_redis_counts_each_of_several_that_are_sent_together() -> None:
    with serve_redis() as service:
        host, _, port = service.addresses[0].rpartition(":")
        with socket.create_connection((host, int(port))) as client:
            ask(client, ("PING",))
            before = service.requests() or 0
            ask(client, *[("EVAL", TWO_COMMANDS, 1, "x")] * 5)
            assert service.requests() == before + 5
            service.listening([])
            assert service.requests() == before + 5
            for _ in range(3):
                ask(client, ("SET", "x", "1"))
            assert service.requests() == before + 8


@pytest.mark.engine("redis")
def test_redis_tells_connections_that_listen_from_others() -> None:
    with serve_redis() as service:
        host, _, port = service.addresses[0].rpartition(":")
        with contextlib.ExitStack() as stack:
            asking, hearing, hearing_shards = (
                stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(3)
            )
            ask(asking, ("PING",))
            ask(hearing, ("SUBSCRIBE", "x"))
            ask(hearing_shards, ("SSUBSCRIBE", "x"))
            assert service.listening(ports_to(service.addresses)) == 2
            assert service.listening([asking.getsockname()[1]]) == 0
