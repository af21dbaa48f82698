"""``holdfast advise``: the tree of advice, asked at a terminal or answered by options."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import holdfast
from holdfast import advice

from .exits import Status
from .options import JSON, Command, Misuse, Option
from .output import print_json, print_lines

__all__ = ["COMMAND", "advise"]

EPILOG = """
Examples:
  holdfast advise
  holdfast advise --problem section --stakes correctness --checks sql --have redis
  holdfast advise --problem rows --statement yes --json | jq -r .code

At a terminal it asks the questions that no option answers. Without a terminal
it prints the next question, and its exit status is 64. With --json, every
result is one document.
"""

HAVE = "have"

LINE_MOST = 100
"""Longer lines are hard to read, however wide the terminal is."""


def _one_of(question: str, keys: tuple[str, ...]) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in keys:
            raise Misuse(f"{text!r} is no answer to --{question}: choose {', '.join(keys)}")
        return text

    return convert


def _option(key: str, text: str, keys: tuple[str, ...]) -> Option:
    return Option(
        (f"--{key}",), f"{text} One of: {', '.join(keys)}.", metavar="ANSWER", convert=_one_of(key, keys)
    )


OPTIONS = (
    *(
        _option(each.key, each.text, tuple(answer.key for answer in each.answers))
        for each in advice.QUESTIONS
    ),
    _option(HAVE, "What do you run already?", tuple(advice.SYSTEMS)),
)


def advise(json: bool, have: str | None, **answers: str | None) -> int:
    """Recommend how to keep two things from happening at once: which lock, or what to use instead.

    It asks what has to be protected and which systems you run. It answers with a way, the engine and its
    guarantees, code to start from, and what can still go wrong.
    """
    given = {key: value for key, value in answers.items() if value is not None}
    asks = not json and _is_at_a_terminal()
    while isinstance(step := advice.walk(given), advice.Question):
        if not asks:
            return _print_question(step, json)
        given[step.key] = _ask(step)
    if have is not None and have not in step.systems:
        complaint = f"{step.title!r} does not work on {have}: choose {', '.join(step.systems)}"
        if not asks:
            raise Misuse(complaint)
        print_lines("", complaint)
        have = None
    if have is None and len(step.systems) == 1:
        have = step.systems[0]
    elif have is None:
        question = advice.Question(
            HAVE,
            "What do you run already?",
            tuple(advice.Answer(key, advice.SYSTEMS[key].name) for key in step.systems),
        )
        if not asks:
            return _print_question(question, json)
        have = _ask(question)
    _print_advice(step, have, given, json)
    return Status.OK


def _is_at_a_terminal() -> bool:
    return os.isatty(0) and os.isatty(1)


def _ask(question: advice.Question) -> str:
    print_lines("", question.text)
    print_lines(*(f"  {number}  {each.text}" for number, each in enumerate(question.answers, 1)))
    while True:
        sys.stdout.write("> ")
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not line:
            raise Misuse(f"no answer to {question.key!r}")
        for number, each in enumerate(question.answers, 1):
            if line.strip().lower() in {str(number), each.key}:
                return each.key
        print_lines(f"a number from 1 to {len(question.answers)}, please")


def _print_question(question: advice.Question, json: bool) -> int:
    if json:
        answers = {each.key: each.text for each in question.answers}
        print_json({"question": question.key, "text": question.text, "answers": answers})
        return Status.USAGE
    listed = "".join(f"\n  --{question.key} {each.key:12} {each.text}" for each in question.answers)
    raise Misuse(f"{question.text} Add one of:{listed}")


def _print_advice(leaf: advice.Leaf, system: str, given: dict[str, str], json: bool) -> None:
    promised = _guarantees(system) if leaf.uses_locks else None
    if json:
        print_json(
            {
                "answers": {**given, HAVE: system},
                "way": leaf.key,
                "title": leaf.title,
                "why": leaf.why,
                "system": system,
                "guarantees": promised,
                "code": leaf.code(system),
                "wrong": leaf.wrong,
                "page": f"docs/{leaf.page}",
            }
        )
        return
    print_lines("", leaf.title, "", *_wrapped(leaf.why), "", "Code to start from:", "")
    print_lines(*(f"    {line}".rstrip() for line in leaf.code(system).rstrip().splitlines()))
    if promised is not None:
        print_lines("", f"What the engine {system} guarantees (holdfast guarantees prints all):")
        _print_items(
            f"scope: {promised['scope']}",
            f"tokens: {promised['fencing']}",
            f"a dead holder's lock is free {promised['crash_release']}",
            *(f"needs: {need}" for need in promised["needs"]),
        )
    print_lines("", "What can still go wrong:")
    _print_items(*leaf.wrong)
    print_lines("", f"More: docs/{leaf.page}, docs/choosing.md")


def _print_items(*items: str) -> None:
    for each in items:
        print_lines(*_wrapped(each, "  - ", "    "))


def _wrapped(text: str, first: str = "", later: str = "") -> list[str]:
    """At a terminal, lines that fit; elsewhere one line, for grep."""
    if not os.isatty(1):
        return [f"{first}{text}"]
    width = min(shutil.get_terminal_size().columns, LINE_MOST)
    return textwrap.wrap(text, max(width, 20), initial_indent=first, subsequent_indent=later)


def _guarantees(system: str) -> dict[str, Any] | None:
    """What the engine promises. None where its package is not installed. Nothing connects here."""
    try:
        with holdfast.connect(advice.SYSTEMS[system].url) as client:
            promised = client.guarantees
    except (holdfast.HoldfastError, ModuleNotFoundError):
        return None
    return {
        "engine": promised.engine,
        "scope": promised.scope,
        "fencing": promised.fencing,
        "fifo": promised.fifo,
        "crash_release": promised.crash_release,
        "needs": promised.needs,
    }


COMMAND = Command(advise, (*OPTIONS, JSON), EPILOG)
