"""Which way to keep what must not happen at once apart: a decision tree as data, and the walk through it.

    from holdfast import advice

    step = advice.walk({"problem": "rows", "statement": "yes"})
    print(step.title, step.code("postgresql"))

A leaf says which answers lead to it. What is asked next follows from the leaves that are still possible, so
that a new leaf is one entry in ``leaves``. ``holdfast advise`` and docs/choosing.md show the same tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .leaves import LEAVES
from .questions import QUESTIONS
from .systems import SYSTEMS, System
from .tree import Answer, Leaf, Question, next_step, paths

__all__ = ["LEAVES", "QUESTIONS", "SYSTEMS", "Answer", "Leaf", "Question", "System", "every_path", "walk"]


def walk(answers: Mapping[str, str]) -> Question | Leaf:
    """The next question, or the recommended way. Answers that make no difference are passed over."""
    return next_step(QUESTIONS, LEAVES, answers)


def every_path() -> Iterator[tuple[Mapping[str, str], Leaf]]:
    """Every way through the tree: the answers, and the leaf at their end."""
    return paths(QUESTIONS, LEAVES)
