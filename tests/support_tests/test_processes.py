"""The process helper: children are driven line by line and never outlive their test."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from support import ProcessEnded, TimedOut, run_python, wait_until


def alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between opening and reading
        return False


def test_lines_in_and_out() -> None:
    code = """
        print("noise")
        print("ready", 7)
        print("got", input())
    """
    with run_python(code) as child:
        assert child.expect("ready") == "7"
        child.send("hello")
        assert child.expect("got") == "hello"
        assert child.succeed() == "noise\nready 7\ngot hello\n"


def test_arguments_environment_and_scripts(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text("import os, sys; print(sys.argv[1], os.environ.get('A'), os.environ.get('B'))")
    os.environ["B"] = "inherited"
    try:
        with run_python(None, "one", script=script, env={"A": "1", "B": None}) as child:
            assert child.succeed() == "one 1 None\n"
    finally:
        del os.environ["B"]
    with run_python(module="this") as child:
        child.expect("The Zen")


def test_children_can_import_the_helpers() -> None:
    with run_python("import support; print('imported')") as child:
        child.expect("imported")


def test_exactly_one_thing_to_run() -> None:
    with pytest.raises(TypeError, match="exactly one"):
        run_python()
    with pytest.raises(TypeError, match="exactly one"):
        run_python("pass", module="this")


def test_an_early_end_shows_what_the_child_said() -> None:
    with run_python("import sys; print('so far'); sys.exit('broken')") as child:
        with pytest.raises(ProcessEnded, match=r"(?s)ready.*so far.*broken"):
            child.expect("ready")
        with pytest.raises(ProcessEnded):
            child.expect("ready")
        with pytest.raises(AssertionError, match="exit status 1"):
            child.succeed()


def test_silence_is_bounded() -> None:
    with run_python("print('up'); input()") as child:
        child.expect("up")
        with pytest.raises(TimedOut, match="no line starting with 'more'"):
            child.expect("more", timeout=0.05)
        with pytest.raises(TimedOut, match="still running"):
            child.wait(timeout=0.05)


def test_much_output_does_not_block_the_child() -> None:
    with run_python("import sys; sys.stderr.write('x' * 300_000 + '\\n'); print('y' * 300_000)") as child:
        assert len(child.succeed()) == 300_001
        assert len(child.stderr) == 300_001


def test_stop_and_cont() -> None:
    with run_python("print('up')\nfor line in iter(input, 'end'): print('echo', line)") as child:
        child.expect("up")
        child.stop()
        child.send("a")
        with pytest.raises(TimedOut):
            child.expect("echo", timeout=0.1)
        child.cont()
        assert child.expect("echo") == "a"
        child.send("end")
        child.succeed()


@pytest.mark.parametrize(
    ("method", "number"),
    [("kill", signal.SIGKILL), ("terminate", signal.SIGTERM), ("interrupt", signal.SIGINT)],
)
def test_signals_end_it(method: str, number: int) -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); print('up'); input()"
    with run_python(code) as child:
        child.expect("up")
        getattr(child, method)()
        assert child.wait() == -number


def test_everything_it_started_is_gone_afterwards() -> None:
    code = """
        import os, signal
        pid = os.fork()
        if pid == 0:
            signal.pause()
        print("grandchild", pid)
        signal.pause()
    """
    with run_python(code) as child:
        grandchild = int(child.expect("grandchild"))
        child.kill()
        assert alive(grandchild), "kill() is for the child alone"
    wait_until(lambda: not alive(grandchild), message="the grandchild outlived the test")
    child.cleanup()


def test_a_failing_test_shows_the_childs_errors() -> None:
    def failing() -> None:
        with run_python("import sys; print('up'); sys.stderr.write('the reason\\n'); input()") as child:
            child.expect("up")
            wait_until(lambda: child.stderr_lines)
            raise AssertionError("the test failed")

    with pytest.raises(AssertionError) as caught:
        failing()
    assert "the reason" in caught.value.__notes__[0]
