"""The questions, in the order in which they are asked."""

from __future__ import annotations

from typing import Final

from .tree import Answer, Question

__all__ = ["QUESTIONS"]

QUESTIONS: Final = (
    Question(
        "problem",
        "What must not happen twice, or not at the same time?",
        (
            Answer("request", "the same request or message, which may arrive twice"),
            Answer("value", "changes of one small value: a setting, a counter, a cursor"),
            Answer("rows", "changes of rows in one database, and of nothing outside it"),
            Answer("history", "decisions about one thing whose history is kept: an account, an order"),
            Answer("items", "work on many items, each by one worker"),
            Answer("schedule", "a run that many servers would start: by the clock, or when they come up"),
            Answer("role", "a role that one of many processes has while it lives: a scheduler, a primary"),
            Answer("together", "work on several things together: two accounts, three devices"),
            Answer("section", "anything else: a file, a service, a device, several databases"),
        ),
    ),
    Question(
        "effect",
        "Where is the effect of the request?",
        (
            Answer("database", "in one database, ours"),
            Answer("elsewhere", "elsewhere: a payment, a mail, another service"),
        ),
    ),
    Question(
        "second",
        "What does the second request get?",
        (
            Answer("nothing", "nothing, or that it was done before"),
            Answer("result", "the result of the first request"),
        ),
    ),
    Question(
        "share",
        "What is given to a worker?",
        (
            Answer("task", "one task after the other, each done once: a mail, an invoice, a file"),
            Answer("part", "a share of the items, for as long as it lives: accounts, devices, feeds"),
            Answer("messages", "messages to items that have a state, one at a time for each: a chat room"),
        ),
    ),
    Question(
        "known",
        "Are all these things known before the work begins?",
        (
            Answer("yes", "yes"),
            Answer("no", "no: what is read from the first decides which comes next"),
        ),
    ),
    Question(
        "statement",
        "Can one SQL statement decide and write?",
        (Answer("yes", "yes: one less if there is one, closed if it is open"), Answer("no", "no")),
    ),
    Question(
        "row",
        "Does a row stand for what is protected?",
        (Answer("yes", "yes"), Answer("no", "no: rows that are not there yet, or a whole procedure")),
    ),
    Question(
        "contention",
        "How often do two writers want the same row at the same time?",
        (Answer("seldom", "seldom"), Answer("often", "often")),
    ),
    Question(
        "length",
        "How much time is between reading and writing?",
        (
            Answer("short", "milliseconds, all of it in the database"),
            Answer("long", "longer: a person decides, or another service is called"),
        ),
    ),
    Question(
        "stakes",
        "What happens if, very rarely, two holders are inside at once?",
        (
            Answer("efficiency", "work is done twice, and nothing is wrong afterwards"),
            Answer("correctness", "something is wrong: money, data, a device"),
        ),
    ),
    Question(
        "holders",
        "How many holders may be inside at once?",
        (
            Answer("one", "one"),
            Answer("readers", "many that read, or one that writes"),
            Answer("several", "a fixed number"),
        ),
    ),
    Question(
        "checks",
        "What does the holder write to, and can it check a number at each write?",
        (
            Answer("sql", "a SQL database"),
            Answer("redis", "Redis"),
            Answer("etcd", "etcd"),
            Answer("zookeeper", "ZooKeeper"),
            Answer("file", "a file"),
            Answer("http", "a service of ours, over HTTP"),
            Answer("nothing", "nothing that could check: a device, a foreign service, a mail"),
        ),
    ),
)
