"""Writes the parts of the documents that are derived from the program.

    python tools/generate_docs.py            write them
    python tools/generate_docs.py --check    report whether they are current

docs/guarantees.md and the table in README.md come from each engine's ``Guarantees``;
docs/command-line.md comes from the texts of ``--help``.
"""

from __future__ import annotations

import sys
import textwrap
from dataclasses import fields
from pathlib import Path

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
