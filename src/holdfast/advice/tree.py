"""The shape of the tree, and the walk through it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..errors import InvalidArgument
from .systems import SYSTEMS

__all__ = ["Answer", "Leaf", "Question", "Way", "next_step", "paths"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One of the answers to a question."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """``answers`` are those that make a difference where it is asked."""

    key: str
    text: str
    answers: tuple[Answer, ...]

    def limited_to(self, keys: Iterable[str]) -> Question:
        wanted = set(keys)
        return replace(self, answers=tuple(each for each in self.answers if each.key in wanted))


Way = Mapping[str, tuple[str, ...]]
"""Question → the answers that lead to a leaf. A question that is not named makes no difference."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One recommended way."""

    key: str
    title: str
    when: tuple[Way, ...]
    """Each leads here."""
    why: str
    systems: tuple[str, ...]
    """Where it works."""
    body: str
    """The code after the connections are open. ``locks`` is a client, ``db`` a connection."""
    wrong: tuple[str, ...]
    """What can still go wrong."""
    page: str
    """The page of the documents."""
    others: str
    """What those do meanwhile who come second, in a few words."""
    crash: str
    """What a worker leaves behind that is killed in the middle, in a few words."""
    imports: tuple[str, ...] = ("import holdfast",)
    uses_locks: bool = True
    uses_database: bool = False
    """The data is in a database: the one of the chosen system, or else SQLite stands for it."""
    opens: str = ""
    """The statement that opens something else in that database; ``{url}`` stands for its URL."""
    instead: bool = False
    """No lock of Holdfast is needed."""

    def code(self, system: str) -> str:
        """The whole program for one of the systems."""
        chosen = SYSTEMS[system]
        data = chosen if chosen.database else SYSTEMS["sqlite"]
        database = data.database if self.uses_database else ""
        driver = f"import {'psycopg' if 'psycopg' in database else 'sqlite3'}" if database else ""
        imports = sorted({each for each in (*self.imports, driver) if each}, key=_import_order)
        store = self.opens.replace("{url}", data.database_url)
        opened = [each for each in (chosen.locks if self.uses_locks else "", store, database) if each]
        body = self.body.strip()
        apart = ["", ""] if body.startswith(("def ", "@")) else [""]
        return "\n".join([*imports, "", *opened, *apart, body, ""])


def _import_order(line: str) -> tuple[int, bool, str]:
    """As the formatter sorts them: standard library, others, ours."""
    name = line.split()[1]
    group = 2 if name.startswith("holdfast") else 1 if name in {"psycopg", "redis", "kazoo.client"} else 0
    return group, line.startswith("from"), line


@dataclass(frozen=True, slots=True)
class _Tree:
    questions: Sequence[Question]
    leaves: Sequence[Leaf]
    answers: Mapping[str, str] = field(default_factory=dict)

    def step(self) -> Question | Leaf:
        possible = [
            (leaf, way)
            for leaf in self.leaves
            for way in leaf.when
            if all(answer in way.get(question, (answer,)) for question, answer in self.answers.items())
        ]
        leaf = possible[0][0]
        if all(other is leaf for other, _ in possible):
            return leaf
        for question in self.questions:
            ways = [way for _, way in possible]
            if question.key in self.answers or not any(question.key in way for way in ways):
                continue
            every = tuple(answer.key for answer in question.answers)
            offered = question.limited_to(answer for way in ways for answer in way.get(question.key, every))
            if len(offered.answers) > 1:
                return offered
        raise LookupError(f"no question tells these apart: {[leaf.key for leaf, _ in possible]}")


def next_step(
    questions: Sequence[Question], leaves: Sequence[Leaf], answers: Mapping[str, str]
) -> Question | Leaf:
    """The next question, or the leaf. Answers to questions that are not asked on this way do not count."""
    tree = _Tree(questions, leaves)
    while isinstance(step := tree.step(), Question) and step.key in answers:
        answer = answers[step.key]
        known = [each.key for each in step.answers]
        if answer not in known:
            raise InvalidArgument(f"{answer!r} is no answer to {step.key!r} here: choose {', '.join(known)}")
        tree = replace(tree, answers={**tree.answers, step.key: answer})
    return step


def paths(
    questions: Sequence[Question], leaves: Sequence[Leaf], answers: Mapping[str, str] | None = None
) -> Iterator[tuple[Mapping[str, str], Leaf]]:
    """Every way through the tree: the answers, and the leaf at their end."""
    given = answers or {}
    step = next_step(questions, leaves, given)
    if isinstance(step, Leaf):
        yield given, step
        return
    for answer in step.answers:
        yield from paths(questions, leaves, {**given, step.key: answer.key})
