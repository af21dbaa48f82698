"""Calls that are wrong here, each with what to write instead."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidy.source import PACKAGE, ROOT, TESTS, Call, calls_of, parse, python_files, shown


@dataclass(frozen=True, slots=True)
class Ban:
    """A banned call: which, where, where not, and the replacement."""

    what: str
    instead: str
    matches: Callable[[Call], bool]
    inside: tuple[Path, ...] = (PACKAGE,)
    except_in: tuple[Path, ...] = ()

    def offenders(self) -> list[str]:
        return [
            str(call)
            for folder in self.inside
            for path in python_files(folder)
            if not any(path.is_relative_to(exempt) for exempt in self.except_in)
            for call in calls_of(path)
            if self.matches(call)
        ]


def called(*functions: str) -> Callable[[Call], bool]:
    return lambda call: call.function in functions


def has_shell(call: Call) -> bool:
    shells = [keyword.value for keyword in call.node.keywords if keyword.arg == "shell"]
    return any(not (isinstance(value, ast.Constant) and value.value is False) for value in shells)


def executes_built_text(call: Call) -> bool:
    """``execute`` of a statement put together from values on the spot."""
    if call.function.rpartition(".")[2] not in {"execute", "executemany", "executescript"}:
        return False
    return any(is_expression_of_text(argument) and not is_fixed(argument) for argument in call.node.args[:1])


def is_expression_of_text(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr in {"format", "join", "replace"}
    return isinstance(node, ast.JoinedStr | ast.BinOp)


def is_fixed(node: ast.expr) -> bool:
    """Made of literals and UPPER_CASE constants alone."""
    if isinstance(node, ast.JoinedStr):
        return all(is_fixed(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return is_fixed(node.value)
    if isinstance(node, ast.BinOp):
        return is_fixed(node.left) and is_fixed(node.right)
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return isinstance(node, ast.Constant) or name.isupper()


def reads_guarantee_text(call: Call) -> bool:
    """A method of a text that ``Guarantees`` has for people: ``guarantees.fifo.startswith("no")``."""
    return call.function.rpartition(".")[0].endswith((".fifo", ".crash_release", ".loss_signal"))


BANS = [
    Ban(
        "the wall clock",
        "runtime/clock.py: its boottime() survives suspend and never jumps, and it has the wall time too",
        called("time.time", "time.time_ns", "datetime.datetime.now", "datetime.datetime.utcnow"),
        # Guards stand apart from drivers, and refuse tokens that no clock can have issued.
        except_in=(PACKAGE / "runtime" / "clock.py", PACKAGE / "fencing" / "arguments.py"),
    ),
    Ban(
        "sleeping in tests",
        "support.wait_until(condition), or a line the child prints (Process.expect)",
        called("time.sleep"),
        inside=(TESTS,),
        except_in=(TESTS / "support",),
    ),
    Ban(
        "print in the library",
        "a logger; only the command line talks to a person",
        called("print"),
        except_in=(PACKAGE / "cli",),
    ),
    Ban(
        "a shell",
        "an argument list: subprocess.Popen([...]) without shell=True",
        lambda call: has_shell(call) or call.function in {"os.system", "os.popen", "subprocess.getoutput"},
        inside=(ROOT,),
    ),
    Ban(
        "SQL put together from values",
        "placeholders: execute('... WHERE name = ?', (name,))",
        executes_built_text,
    ),
    Ban(
        "pickle in the library",
        "json, or a format of its own: what comes from an engine is data, never code",
        called("pickle.load", "pickle.loads", "pickle.dump", "pickle.dumps", "marshal.loads"),
    ),
    Ban(
        "a guessed event loop",
        "asyncio.get_running_loop()",
        called("asyncio.get_event_loop"),
        inside=(PACKAGE, TESTS),
    ),
    Ban(
        "a decision by a text for people",
        "a field of Guarantees for code, for example `guarantees.is_fifo`",
        reads_guarantee_text,
        inside=(PACKAGE, TESTS),
    ),
    Ban(
        "a thread per timer",
        "the keeper, which times everything a client holds on one thread",
        called("threading.Timer"),
    ),
]


@pytest.mark.parametrize("ban", BANS, ids=lambda ban: ban.what)
def test_banned(ban: Ban) -> None:
    offenders = ban.offenders()
    assert not offenders, f"{ban.what}; write instead: {ban.instead}\n" + "\n".join(offenders)


def test_no_bare_except() -> None:
    bare = [
        shown(path, node.lineno)
        for path in python_files(ROOT)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]
    assert not bare, (
        "name what is caught; `except BaseException` and raise again if it must be all:\n" + "\n".join(bare)
    )


def test_a_method_that_subclasses_must_have_is_abstract() -> None:
    """A class that lacks an abstract method cannot be made; one that raises is noticed when it is called."""
    unlike_abstract = [
        shown(path, node.lineno)
        for path in python_files(PACKAGE)
        if not path.is_relative_to(PACKAGE / "fencing")  # which databases lack what is known when one is used
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Name) and node.id == "NotImplementedError"
    ]
    assert not unlike_abstract, "derive from ABC, and write @abstractmethod:\n" + "\n".join(unlike_abstract)


@pytest.mark.parametrize(
    ("source", "banned"),
    [
        ("import time; time.time()", "the wall clock"),
        ("from time import time as now; now()", "the wall clock"),
        ("import time as t; t.time_ns()", "the wall clock"),
        ("from time import sleep; sleep(1)", "sleeping in tests"),
        ("import subprocess; subprocess.run('ls', shell=True)", "a shell"),
        ("cursor.execute(f'SELECT {name}')", "SQL put together from values"),
        ("cursor.execute('SELECT ' + name)", "SQL put together from values"),
        ("cursor.execute('SELECT %s' % name)", "SQL put together from values"),
        ("cursor.execute('SELECT {}'.format(name))", "SQL put together from values"),
        ("cursor.execute(f'PRAGMA user_version = {SCHEMA_VERSION}')", None),
        ("cursor.execute('SELECT ?', (name,))", None),
        ("cursor.execute('SELECT ' + COLUMNS + ' FROM locks')", None),
        ("cursor.execute(SELECT)", None),
        ("pool.execute(work, f'a{b}')", None),
        ("client.guarantees.fifo.startswith('no')", "a decision by a text for people"),
        ("import time; time.monotonic()", None),
        ("import subprocess; subprocess.run(['ls'], shell=False)", None),
    ],
)
def test_each_ban_sees_what_it_should(source: str, banned: str | None, tmp_path: Path) -> None:
    path = tmp_path / "example.py"
    path.write_text(source)
    assert {ban.what for ban in BANS for call in calls_of(path) if ban.matches(call)} == ({banned} - {None})
