"""``tools/install-servers`` with a stand-in for apt-get, on an empty root of its own."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

import pytest

from support import wait_until

SCRIPT = Path(__file__).resolve().parent.parent.parent / "tools" / "install-servers"
TOOLS = ("cat", "chmod", "env", "grep", "id", "mkdir", "mv", "rm", "sh", "sleep", "tee", "touch", "tr")

APT_GET = """#!/bin/sh
# Notes what it was asked and what the policy says meanwhile; "installs" an empty program for each package.
echo "$DEBIAN_FRONTEND $*" >>"$INSTALL_SERVERS_ROOT/asked"
case $* in *install*) ;; *) exit 0 ;; esac
"$INSTALL_SERVERS_ROOT/usr/sbin/policy-rc.d" || echo "policy $?" >>"$INSTALL_SERVERS_ROOT/asked"
if [ -e "$INSTALL_SERVERS_ROOT/wait" ]; then exec sleep 60; fi
if [ -e "$INSTALL_SERVERS_ROOT/fail" ]; then exit 100; fi
mkdir -p "$INSTALL_SERVERS_ROOT/usr/lib/x/faketime"
touch "$INSTALL_SERVERS_ROOT/usr/lib/x/faketime/libfaketime.so.1"
for program in redis-server redis-cli openssl; do
    touch "$INSTALL_SERVERS_ROOT/bin/$program"
    chmod 755 "$INSTALL_SERVERS_ROOT/bin/$program"
done
"""


class Machine:
    """A root with nothing but the tools that the script uses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.policy = root / "usr/sbin/policy-rc.d"
        (root / "bin").mkdir()
        self.policy.parent.mkdir(parents=True)
        for tool in TOOLS:
            (root / "bin" / tool).symlink_to(shutil.which(tool) or "")
        self.program("apt-get", APT_GET)

    def program(self, name: str, text: str) -> None:
        path = self.root / "bin" / name
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def environment(self, engines: str) -> dict[str, str]:
        return {
            "PATH": str(self.root / "bin"),
            "INSTALL_SERVERS_ROOT": str(self.root),
            "HOLDFAST_TEST_ENGINES": engines,
        }

    def install(self, engines: str = "redis") -> subprocess.CompletedProcess[str]:
        environment = self.environment(engines)
        return subprocess.run([SCRIPT], env=environment, capture_output=True, text=True, check=False)

    @property
    def asked(self) -> list[str]:
        path = self.root / "asked"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    if os.geteuid() != 0:
        machine.program("id", "#!/bin/sh\necho 0\n")
    return machine


def test_what_is_missing_is_installed_and_starts_nothing(machine: Machine) -> None:
    done = machine.install()
    assert done.returncode == 0, done.stderr
    told = "the tests start real servers. These Debian packages are missing, and are now installed as root: "
    assert f"{told}redis-server redis-tools faketime openssl\n" in done.stderr
    assert "To install nothing: make test HOLDFAST_TEST_ENGINES=memory,sqlite" in done.stderr
    update, install, policy = machine.asked
    assert update.startswith("noninteractive ")
    assert update.endswith(" update")
    assert install.endswith("install --yes --no-install-recommends redis-server redis-tools faketime openssl")
    assert policy == "policy 101"
    assert not machine.policy.exists()
    machine.install()
    assert len(machine.asked) == 3, "nothing is missing any more"


def test_engines_without_a_server_need_nothing(machine: Machine) -> None:
    assert machine.install(" memory, sqlite").returncode == 0
    assert machine.asked == []


def test_without_the_variable_all_is_needed(machine: Machine) -> None:
    for engines in ("", " , "):
        done = machine.install(engines)
        assert done.returncode == 1, "not all of it was installed"
        packages = "etcd-server libzookeeper-java default-jre-headless postgresql pgbouncer mariadb-server"
        assert f"not found: {packages} python3-mysqldb" in done.stderr


@pytest.mark.parametrize("fails", [False, True])
def test_a_policy_that_was_there_is_there_again(machine: Machine, fails: bool) -> None:
    machine.policy.write_text("#!/bin/sh\nexit 104\n")
    machine.policy.chmod(0o751)
    if fails:
        (machine.root / "fail").touch()
    assert (machine.install().returncode != 0) == fails
    assert machine.asked[-1] == "policy 101"
    assert machine.policy.read_text() == "#!/bin/sh\nexit 104\n"
    assert stat.S_IMODE(machine.policy.stat().st_mode) == 0o751


def test_what_a_killed_run_left_is_put_right(machine: Machine) -> None:
    machine.policy.write_text("#!/bin/sh\nexit 104\n")
    machine.policy.chmod(0o755)
    (machine.root / "wait").touch()
    running = subprocess.Popen([SCRIPT], env=machine.environment("redis"), start_new_session=True)
    wait_until(lambda: machine.asked[-1:] == ["policy 101"])
    os.killpg(running.pid, 9)
    running.wait()
    assert "exit 101" in machine.policy.read_text()
    (machine.root / "wait").unlink()
    assert machine.install().returncode == 0
    assert machine.policy.read_text() == "#!/bin/sh\nexit 104\n"


def test_an_interrupted_run_leaves_no_policy(machine: Machine) -> None:
    (machine.root / "wait").touch()
    running = subprocess.Popen([SCRIPT], env=machine.environment("redis"), start_new_session=True)
    wait_until(lambda: machine.asked[-1:] == ["policy 101"])
    started = time.monotonic()
    os.killpg(running.pid, 15)
    assert running.wait() == 143
    assert time.monotonic() - started < 30
    assert not machine.policy.exists()


def test_without_root_and_sudo_it_says_what_to_do(machine: Machine) -> None:
    machine.program("id", "#!/bin/sh\necho 1000\n")
    done = machine.install("etcd")
    assert done.returncode == 1
    assert "etcd-server" in done.stderr
    assert "HOLDFAST_TEST_ENGINES=memory,sqlite" in done.stderr
    machine.program("sudo", '#!/bin/sh\necho sudo >>"$INSTALL_SERVERS_ROOT/asked"\n"$@"\n')
    machine.install("redis")
    assert "sudo" in machine.asked
    assert not machine.policy.exists()
