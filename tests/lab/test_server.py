"""What holds for every server: ports, pauses, ends, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

import pytest

from holdfast.lab.servers import ProgramMissing, Redis, Server, ServerFailed, ports
from holdfast.lab.servers import server as server_module
from support import run_python, wait_until

pytestmark = pytest.mark.engine("redis")


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_it_is_gone_after_the_block() -> None:
    with Redis() as server:
        pid = server.pid
        assert alive(pid)
    assert not alive(pid)
    assert not server.running
    server.close()


def test_kill_and_start_again() -> None:
    with Redis() as server:
        pid, port = server.pid, server.port
        server.kill()
        assert not alive(pid)
        with pytest.raises(OSError, match="refused"):
            server.command("PING")
        server.start()
        assert server.start() is server, "it runs already"
        assert (server.port, server.command("PING")) == (port, "PONG")
        assert server.log.count("Ready to accept connections") == 2


def test_a_paused_server_is_silent_until_it_is_resumed() -> None:
    with Redis() as server, server.connection() as connection:
        server.pause()
        connection.settimeout(0.05)
        connection.sendall(b"PING\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(100)
        server.resume()
        connection.settimeout(5)
        assert connection.recv(100) == b"+PONG\r\n"
        server.pause()
    assert not server.running, "a paused one can be stopped too"


def test_a_taken_port_is_exchanged_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((ports.HOST, 0)) as taken:
        choices = iter([taken.getsockname()[1], ports.free_port()])
        monkeypatch.setattr(server_module, "free_port", lambda: next(choices))
        with Redis() as server:
            assert server.command("PING") == "PONG"
            assert server.port != taken.getsockname()[1]


def test_another_server_on_the_port_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    with Redis() as other:
        choices = iter([other.port, ports.free_port()])
        monkeypatch.setattr(server_module, "free_port", lambda: next(choices))
        with Redis() as server:
            assert server.port != other.port
            assert server.info("server")["process_id"] == str(server.pid)


def test_a_port_lost_between_two_starts_is_an_error() -> None:
    with Redis() as server:
        server.stop()
        with (
            socket.create_server((ports.HOST, server.port)),
            pytest.raises(ServerFailed, match=r"(?i)address already in use|another process"),
        ):
            server.start()


def test_a_server_that_ends_says_why() -> None:
    with (
        pytest.raises(ServerFailed, match=r"ended before it was ready(.|\n)*nonsense yes"),
        Redis(settings={"nonsense": "yes"}),
    ):
        pass


def test_a_missing_program_names_its_package() -> None:
    with pytest.raises(ProgramMissing, match="apt-get install some-package"):
        server_module.find_program("no-such-program", "some-package")


def test_a_server_outlives_the_thread_that_started_it() -> None:
    server = Redis()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    with server:
        assert server.command("PING") == "PONG"


CHILD = """
    from holdfast.lab.servers import Redis
    server = Redis().start()
    print("folder", server.folder, flush=True)
    print("pid", server.pid, flush=True)
    input()
"""


def test_a_killed_run_leaves_no_server(tmp_path: Path) -> None:
    with run_python(CHILD, env={"TMPDIR": str(tmp_path)}) as child:
        pid = int(child.expect("pid"))
        child.kill()
        wait_until(lambda: not alive(pid))


def test_a_run_that_ends_without_closing_leaves_neither_server_nor_folder() -> None:
    with run_python(CHILD) as child:
        folder = Path(child.expect("folder"))
        pid = int(child.expect("pid"))
        child.send()
        child.succeed()
        assert not alive(pid)
        assert not folder.exists()


def test_a_forked_child_does_not_close_what_is_not_its_own() -> None:
    with Redis() as server:
        pid = os.fork()
        if pid == 0:
            try:
                server.close()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        assert server.command("PING") == "PONG"


def test_a_server_before_its_first_start_has_no_folder() -> None:
    server: Server = Redis()
    with pytest.raises(ServerFailed, match="not been started"):
        server.folder.exists()
    with pytest.raises(ServerFailed, match="not running"):
        assert server.pid
    server.stop()
    server.kill()
    server.close()
