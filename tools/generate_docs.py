"""Writes the parts of the documents that are derived from the program.

    python tools/generate_docs.py            write them
    python tools/generate_docs.py --check    report whether they are current

docs/guarantees.md and the table in README.md come from each engine's ``Guarantees``;
docs/command-line.md comes from the texts of ``--help``; docs/choosing.md and its picture from the tree
of ``holdfast.advice``, the guarantees and the committed results of the benchmarks.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields
from html import escape
from pathlib import Path
from typing import NamedTuple

from holdfast import advice
from holdfast.cli.app import ROOT as COMMANDS
from holdfast.cli.options import Argument, Command, Group, Option
from holdfast.cli.parser import load
from holdfast.engines import SCHEMES, open_engine
from holdfast.model import Guarantees

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "<!-- generated: guarantees (make docs) -->"
END = "<!-- end of generated -->"


def main(arguments: list[str]) -> int:
    stale = [
        path for path, text in documents().items() if not path.is_file() or path.read_text("utf-8") != text
    ]
    for path in stale:
        shown = path.relative_to(ROOT)
        if "--check" in arguments:
            print(f"{shown} is not current: run `make docs`", file=sys.stderr)
        else:
            path.write_text(documents()[path], "utf-8")
            print(f"wrote {shown}")
    return 1 if stale and "--check" in arguments else 0


def documents() -> dict[Path, str]:
    """Every document with generated parts, as it should be."""
    readme = ROOT / "README.md"
    before, _, rest = readme.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return {
        readme: f"{before}{BEGIN}\n{table()}{END}{after}",
        ROOT / "docs" / "guarantees.md": guarantees_page(),
        ROOT / "docs" / "command-line.md": command_line_page(),
        ROOT / "docs" / "choosing.md": choosing_page(),
        ROOT / "docs" / "choosing.svg": tree_picture(),
    }


def engines() -> list[tuple[str, Guarantees]]:
    """The guarantees of each engine, in the order of registration. Opening an engine does no I/O."""
    seen: dict[str, Guarantees] = {}
    for scheme in SCHEMES:
        promised = open_engine(EXAMPLES[scheme], "holdfast", {}).guarantees
        seen.setdefault(promised.engine, promised)
    return list(seen.items())


EXAMPLES = {
    "memory": "memory://",
    "sqlite": "sqlite:////var/lib/app/locks.db",
    "redis": "redis://localhost:6379/0",
    "rediss": "rediss://localhost:6379/0",
    "redis+sentinel": "redis+sentinel://localhost:26379?service=main",
    "redis+cluster": "redis+cluster://localhost:6379",
    "redlock": "redlock://a:6379,b:6379,c:6379",
    "etcd": "etcd://localhost:2379",
    "zookeeper": "zookeeper://localhost:2181",
    "postgresql": "postgresql://db.example.org/app",
    "postgresql+advisory": "postgresql+advisory://db.example.org/app",
}


def table() -> str:
    lines = [
        "| engine | scope | a dead holder's lock is free | in order | primitives |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {name} | {g.scope} | {g.crash_release} | {g.fifo} | {', '.join(g.primitives)} |"
        for name, g in engines()
    ]
    return "\n".join(lines) + "\n"


def for_code() -> list[str]:
    """The fields of ``Guarantees`` that are no text for people."""
    promised = engines()[0][1]
    return [
        "scope",
        "primitives",
        *(f.name for f in fields(promised) if isinstance(getattr(promised, f.name), bool)),
    ]


def guarantees_page() -> str:
    parts = [
        "# Guarantees\n",
        "What each engine promises and when it can fail: the texts of `client.guarantees`.\n",
        f"Code reads its other fields: {', '.join(f'`{name}`' for name in for_code())}.\n",
        table(),
    ]
    for name, g in engines():
        parts.append(f"## {name}\n")
        parts.append(
            f"- **Scope**: {g.scope}\n- **Tokens**: {g.fencing}\n- **Order**: {g.fifo}\n"
            f"- **A dead holder's lock**: {g.crash_release}\n- **Loss is reported**: {g.loss_signal}\n"
            f"- **Primitives**: {', '.join(g.primitives)}\n"
            + "".join(f"- **Needs**: {need}\n" for need in g.needs)
        )
        parts.append("| fault | what happens |\n| --- | --- |")
        parts.append("".join(f"| {fault} | {outcome} |\n" for fault, outcome in g.faults.items()))
    return "\n".join(parts).rstrip() + "\n"


def command_line_page() -> str:
    """Every command with its arguments and options; the text of ``--help`` depends on the terminal."""
    parts = [
        "# Command line\n",
        "What `holdfast --help` says, command by command.\n",
        paragraphs(COMMANDS.help),
        f"```text\n{plain(COMMANDS.epilog)}\n```\n",
    ]
    for name, command in commands_of(COMMANDS):
        parts.append(f"## holdfast {name}\n\n{paragraphs(command.help)}\n| | |\n| --- | --- |")
        parts += [row(each) for each in command.params]
        parts.append(f"\n```text\n{plain(command.epilog)}\n```\n" if command.epilog else "")
    return "\n".join(parts).rstrip() + "\n"


def choosing_page() -> str:
    """The tree of ``holdfast advise``: drawn, side by side, and leaf by leaf."""
    parts = [CHOOSING, "## The tree\n", "![The questions, and where each answer leads](choosing.svg)\n"]
    parts += [
        "## The ways, side by side\n",
        SIDE_BY_SIDE,
        "| when | way | a lock? | those who come second | a crash leaves | works on |",
    ]
    parts[-1] += "\n| --- | --- | --- | --- | --- | --- |" + "".join(
        f"\n| {reasons(leaf)} | [{leaf.title}](#{anchor(leaf.title)}) | {'no' if leaf.instead else 'yes'} | "
        f"{leaf.others} | {leaf.crash} | {', '.join(leaf.systems)} |"
        for leaf in advice.LEAVES
    )
    parts += [
        "\n## The ways, measured\n",
        WAYS_MEASURED,
        ways_measured(),
        "## The engines, side by side\n",
        MEASURED,
        engines_side_by_side(),
    ]
    for leaf in advice.LEAVES:
        code = leaf.code(leaf.systems[0])
        parts.append(f"## {leaf.title}\n\n{filled(leaf.why)}\n")
        parts.append(
            f"```python\n# not run: here; the tests of holdfast advise run it on each system\n{code}```\n"
        )
        parts.append(
            "What can still go wrong:\n\n" + "".join(f"- {filled(each, '  ')}\n" for each in leaf.wrong)
        )
        parts.append(f"More: [{leaf.page}]({leaf.page})\n")
    return "\n".join(parts).rstrip() + "\n"


CHOOSING = """\
# Choosing

Which lock, or what instead of one. `holdfast advise` asks these questions at a terminal, or takes the
answers as options and prints JSON.

1. **Do you need a lock at all?** Where the same request may come twice, one small value changes, tasks are
   handed out, a history is kept, or everything is in one database, something else is right, and most of it
   cannot be lost.
2. **What if it fails once in a long while?** Where work is done twice, that is a matter of efficiency: any
   engine will do, take the one you have. Where something would be wrong, the lock is half of it: what is
   written to has to check the token.
3. **What can check?** A database, Redis, etcd, ZooKeeper, a file and your own services can. Where nothing
   can, make the effect one that may come twice.
"""

SIDE_BY_SIDE = """\
What `holdfast advise` recommends when, with the options that answer its questions. "A lock?" says whether a
lock of Holdfast is held; a database has locks of its own. A worker that crashes is killed in the middle.
[examples/inventory.py](../examples/inventory.py) sells the last units of an inventory by a cell, by a lock
with a guard and by a queue, and prints the rate of each beside the others; `examples/last_unit.py` compares
the ways of one database.
"""

TAKE_IT_WHEN = {
    "memory": "tests, and the threads of one process",
    "sqlite": "all processes are of one user on one machine; there is nothing to run",
    "redis": "Redis is there, and a failover that forgets a lock does no harm or meets a guard",
    "redis+sentinel": "the same, and a replica has to take over by itself",
    "redis+cluster": "the same, and the load is more than one server carries",
    "redlock": "there are several independent Redis servers, and one of them may fail",
    "etcd": "a lock has to survive the loss of a server, and etcd is there",
    "zookeeper": "a lock has to survive the loss of a server, and ZooKeeper is there",
    "postgresql": "PostgreSQL is there, also behind a proxy that pools by transaction",
    "postgresql+advisory": "PostgreSQL is there, and a dead holder's lock has to be free at once",
}

WAYS_MEASURED = """\
What some of the ways do in a second, beside what would stand in their place: medians of the
[results](../benchmarks/results/README.md), which say how. One machine, servers on loopback: the
proportions tell more than the numbers.
"""


class Comparison(NamedTuple):
    """Two rows of one measurement, and whose rate each is."""

    leaf: str
    what: str
    group: str
    measure: str
    ours: str
    theirs: str
    beside: str


COMPARISONS = (
    *(
        Comparison(
            "cell",
            f"8 processes add to one counter, {name}",
            "cells",
            "updates",
            f"cells-{key}/cell/8",
            f"cells-{key}/lock/8",
            "a lock around reading and writing",
        )
        for key, name in {
            "sqlite": "SQLite",
            "redis": "Redis",
            "postgresql": "PostgreSQL",
            "etcd": "etcd",
            "zookeeper": "ZooKeeper",
        }.items()
    ),
    Comparison(
        "optimistic",
        "16 writers change one of 64 rows each time, 1 ms from reading to writing",
        "sql-counters",
        "counters",
        "optimistic/64/1/16",
        "pessimistic/64/1/16",
        "a row lock",
    ),
    Comparison(
        "row-lock",
        "16 writers change the same row, 10 ms from reading to writing",
        "sql-counters",
        "counters",
        "pessimistic/1/10/16",
        "optimistic/1/10/16",
        "optimistic, which decides several times",
    ),
    *(
        Comparison(
            "events",
            f"{writers} writer{'s' * (writers > 1)} append to streams of their own",
            "events",
            "appends",
            f"events/{writers}",
            f"insert/{writers}",
            "a bare INSERT",
        )
        for writers in (1, 8)
    ),
    Comparison(
        "queue",
        "4 workers, jobs that do nothing",
        "queue",
        "jobs",
        "holdfast-queue/4",
        "procrastinate/4",
        "procrastinate",
    ),
    Comparison(
        "lock-and-sql-guard",
        "a transaction with a guard",
        "fencing",
        "pairs",
        "fenced",
        "unfenced",
        "the same without",
    ),
    Comparison(
        "lock-and-redis-guard",
        "a write with a guard",
        "fencing-redis",
        "redis_writes",
        "fenced-redis",
        "evalsha-set",
        "a script that sets",
    ),
)

COLUMNS = "cells, jobs, results | deadlocks found | handed over | a pair | hand-off"

MEASURED = """\
A pair is `acquire` and `release` of a lock without contention; the hand-off is from a release to the grant in
another process that waits. Both are medians on the machine of the [results](../benchmarks/results/README.md),
servers on loopback: the proportions tell more than the numbers. [Guarantees](guarantees.md) has the whole
text of each.
"""


class Branch(NamedTuple):
    """A line of the picture of the tree."""

    depth: int
    answer: str
    step: advice.Question | advice.Leaf


def branches(given: Mapping[str, str], depth: int = 0, answer: str = "") -> Iterator[Branch]:
    """Every answer and what it leads to, in the order of reading."""
    step = advice.walk(given)
    yield Branch(depth, answer, step)
    if isinstance(step, advice.Question):
        for each in step.answers:
            yield from branches({**given, step.key: each.key}, depth + 1, each.text.partition(":")[0])


LINE, INDENT, LEFT, TOP, WIDTH = 25, 30, 24, 70, 960
INK, ANSWER, LOCK, NO_LOCK = "#111827", "#6b7280", "#1d4ed8", "#15803d"


def tree_picture() -> str:
    """The tree, drawn from left to right and read from top to bottom."""
    found = list(branches({}))
    height = TOP + LINE * len(found)
    shapes = []
    for number, branch in enumerate(found):
        x, y = LEFT + INDENT * branch.depth, TOP + LINE * number
        parent = next((n for n in reversed(range(number)) if found[n].depth < branch.depth), None)
        if parent is not None:
            above = TOP + LINE * parent + 7
            shapes.append(
                f'<path d="M{x - INDENT + 6} {above}V{y - 4}H{x - 5}" fill="none" stroke="#9ca3af"/>'
            )
        said = f'<tspan fill="{ANSWER}">{escape(branch.answer)} → </tspan>' if branch.answer else ""
        shapes.append(f'<text x="{x}" y="{y}">{said}{drawn_step(branch.step)}</text>')
    return PICTURE.format(width=WIDTH, height=height, shapes="\n  ".join(shapes), lock=LOCK, no_lock=NO_LOCK)


def drawn_step(step: advice.Question | advice.Leaf) -> str:
    if isinstance(step, advice.Question):
        return f'<tspan fill="{INK}" font-weight="700">{escape(step.text)}</tspan>'
    colour = NO_LOCK if step.instead else LOCK
    return f'<tspan fill="{colour}">{escape(step.title)}</tspan>'


PICTURE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" \
aria-labelledby="title desc" font-family="system-ui, sans-serif" font-size="13" xml:space="preserve">
  <title id="title">Which lock, or what instead of one</title>
  <desc id="desc">The questions of holdfast advise, each with its answers, down to the recommended way.</desc>
  <rect width="{width}" height="{height}" fill="#ffffff"/>
  <text x="24" y="30"><tspan font-weight="700" fill="#111827">A question</tspan><tspan fill="#6b7280">, an \
answer → </tspan><tspan fill="{no_lock}">a way without a lock of Holdfast</tspan><tspan fill="#6b7280"> \
or </tspan><tspan fill="{lock}">a way with one</tspan></text>
  {shapes}
</svg>
"""


def reasons(leaf: advice.Leaf) -> str:
    """The answers that lead to a leaf, in words."""
    texts = {(q.key, a.key): a.text for q in advice.QUESTIONS for a in q.answers}
    ways = [
        "; ".join(
            texts[question, answer].partition(":")[0] if question == "problem" else f"{question}: {answer}"
            for question, answers in way.items()
            for answer in answers
        )
        for way in leaf.when
    ]
    return "; or ".join(ways)


def ways_measured() -> str:
    """Without those of which no results are committed."""
    titles = {leaf.key: leaf.title for leaf in advice.LEAVES}
    lines = ["| way | where | per second | beside it | per second |", "| --- | --- | ---: | --- | ---: |"]
    for each in COMPARISONS:
        rows = rows_of(each.group, each.measure)
        if each.ours in rows and each.theirs in rows:
            ours, theirs = (f"{rows[key]['rate']['value']:,.0f}" for key in (each.ours, each.theirs))
            way = f"[{titles[each.leaf]}](#{anchor(titles[each.leaf])})"
            lines.append(f"| {way} | {each.what} | {ours} | {each.beside} | {theirs} |")
    return "\n".join(lines) + "\n"


def engines_side_by_side() -> str:
    lines = [
        f"| engine | take it when | scope | in order | a dead holder's lock | {COLUMNS} |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | ---: | ---: |",
    ]
    for name, g in engines():
        measured = [shown_seconds(measure) for measure in (pair_seconds(name), handoff_seconds(name))]
        can = (g.is_fifo, g.has_cells, "rwlock" in g.primitives, g.can_export)
        in_order, *others = ["yes" if each else "no" for each in can]
        lines.append(
            f"| {name} | {TAKE_IT_WHEN[name]} | {g.scope} | {in_order} | "
            f"{g.crash_release.partition(';')[0].partition(':')[0]} | {' | '.join([*others, *measured])} |"
        )
    return "\n".join(lines) + "\n"


def rows_of(group: str, measure: str) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """Key → metrics, of all rows in the committed results."""
    path = ROOT / "benchmarks" / "results" / group / "results.json"
    measures = json.loads(path.read_text("utf-8"))["measures"] if path.is_file() else {}
    return {row["key"]: row["metrics"] for row in measures.get(measure, {"rows": []})["rows"]}


def rows_measured(engine: str, measure: str) -> Iterator[dict[str, dict[str, float]]]:
    """The metrics of Holdfast's own rows, for threads, in the committed results."""
    path = ROOT / "benchmarks" / "results" / engine / "results.json"
    if path.is_file():
        measured = json.loads(path.read_text("utf-8"))["measures"].get(measure, {"rows": []})
        yield from (
            row["metrics"]
            for row in measured["rows"]
            if row["role"] == "subject" and not row["key"].endswith("-asyncio")
        )


def pair_seconds(engine: str) -> float | None:
    return next((1 / row["rate"]["value"] for row in rows_measured(engine, "pairs")), None)


def handoff_seconds(engine: str) -> float | None:
    return next((row["p50"]["value"] for row in rows_measured(engine, "handoff")), None)


def shown_seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 1e-4:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2g} ms"


def anchor(title: str) -> str:
    """As GitHub makes them from headings."""
    kept = "".join(each for each in title.lower() if each.isalnum() or each in " -")
    return kept.replace(" ", "-")


def filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 118, subsequent_indent=indent)


def commands_of(group: Group, before: str = "") -> list[tuple[str, Command]]:
    """Every command by its full name; a group is described by its commands."""
    found = []
    for name, place in group.commands.items():
        command = load(place)
        if isinstance(command, Group):
            found += commands_of(command, f"{before}{name} ")
        else:
            found.append((f"{before}{name}", command))
    return found


def row(parameter: Argument | Option) -> str:
    """One argument or option."""
    if isinstance(parameter, Option):
        shown = f"{', '.join(parameter.names)} {parameter.metavar}".strip()
    else:
        shown = parameter.metavar
    return f"| `{shown}` | {' '.join(parameter.help.split())} |"


def plain(text: str | None) -> str:
    return textwrap.dedent(text or "").strip()


def paragraphs(text: str | None) -> str:
    """Help as prose: one line a paragraph."""
    return "\n\n".join(" ".join(part.split()) for part in plain(text).split("\n\n")) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
