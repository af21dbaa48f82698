"""The tree of advice: every way through it ends, at one leaf, and every leaf is reached."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast import InvalidArgument, advice
from holdfast.advice.tree import Leaf, Question, next_step

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def test_every_way_ends_at_a_leaf_and_every_leaf_is_reached() -> None:
    found = [leaf.key for _, leaf in advice.every_path()]
    assert set(found) == {leaf.key for leaf in advice.LEAVES}
    assert len({leaf.key for leaf in advice.LEAVES}) == len(advice.LEAVES)


def test_nothing_is_asked_that_makes_no_difference() -> None:
    """At each question, two of the answers lead to different sets of leaves."""
    reached: dict[tuple[tuple[str, str], ...], set[str]] = {}
    for answers, leaf in advice.every_path():
        way = tuple(answers.items())
        for length in range(len(way) + 1):
            reached.setdefault(way[:length], set()).add(leaf.key)
    for way in reached:
        if way:
            siblings = [
                found for other, found in reached.items() if other[:-1] == way[:-1] and len(other) == len(way)
            ]
            assert any(a != b for a, b in itertools.pairwise(siblings)), way


def test_the_two_paths_of_the_articles() -> None:
    plain = advice.walk({"problem": "section", "stakes": "efficiency", "holders": "one"})
    assert isinstance(plain, Leaf)
    assert plain.key == "lock"
    guarded = advice.walk({"problem": "section", "stakes": "correctness", "checks": "sql"})
    assert isinstance(guarded, Leaf)
    assert guarded.key == "lock-and-sql-guard"


def test_answers_that_make_no_difference_are_passed_over_and_impossible_ones_refused() -> None:
    step = advice.walk({"problem": "value", "checks": "sql"})
    assert isinstance(step, Leaf)
    assert step.key == "cell"
    with pytest.raises(InvalidArgument, match=r"'both' is no answer to 'stakes' here: choose efficiency, "):
        advice.walk({"problem": "section", "stakes": "both"})


@pytest.mark.parametrize("leaf", advice.LEAVES, ids=lambda leaf: leaf.key)
def test_a_leaf_is_whole(leaf: Leaf) -> None:
    assert leaf.why
    assert leaf.wrong
    assert leaf.others
    assert leaf.crash
    assert leaf.systems
    assert set(leaf.systems) <= set(advice.SYSTEMS)
    assert (DOCS / leaf.page).is_file()
    questions = {question.key: {each.key for each in question.answers} for question in advice.QUESTIONS}
    for way in leaf.when:
        for question, answers in way.items():
            assert set(answers) <= questions[question]
    for system in leaf.systems:
        compile(leaf.code(system), leaf.key, "exec")


def test_a_new_leaf_is_one_entry() -> None:
    """It is asked for where its answers lead, without a change elsewhere."""
    cell = next(leaf for leaf in advice.LEAVES if leaf.key == "cell")
    new = replace(cell, key="new", when=({"problem": ("value",), "contention": ("often",)},))
    old = replace(cell, when=({"problem": ("value",), "contention": ("seldom",)},))
    leaves = [*(leaf for leaf in advice.LEAVES if leaf is not cell), old, new]
    step = next_step(advice.QUESTIONS, leaves, {"problem": "value"})
    assert isinstance(step, Question)
    assert step.key == "contention"
    assert next_step(advice.QUESTIONS, leaves, {"problem": "value", "contention": "often"}) is new


def test_two_leaves_that_no_question_tells_apart_are_a_mistake() -> None:
    cell = next(leaf for leaf in advice.LEAVES if leaf.key == "cell")
    again = replace(cell, key="again")
    with pytest.raises(LookupError, match="no question tells these apart"):
        next_step(advice.QUESTIONS, [*advice.LEAVES, again], {"problem": "value"})
