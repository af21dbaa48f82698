"""When a periodic job is next: ``every`` so many seconds, or the five fields of cron, in UTC. No I/O.

A day matches as in cron: where both the day of the month and the day of the week are restricted, either will
do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from ..errors import InvalidArgument

__all__ = ["Cron", "Every", "Schedule", "parse_schedule"]

_NAMES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_FIELDS: Final = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PART: Final = re.compile(r"(\*|[a-z]{3}|\d{1,2})(?:-([a-z]{3}|\d{1,2}))?(?:/(\d{1,2}))?")
_YEARS: Final = 9
"""The longest that a date can stay away: 29 February, around a year 2100."""

EXAMPLE: Final = "write the five fields of cron, such as '*/5 * * * *', or every= so many seconds"


@dataclass(frozen=True, slots=True)
class Every:
    """Multiples of a period since 1970, so that a whole fleet agrees on them."""

    seconds: float

    @property
    def text(self) -> str:
        return f"every {self.seconds:.17g}"  # all digits: this is stored, and read again

    def next_after(self, now: float) -> float:
        return (now // self.seconds + 1) * self.seconds


@dataclass(frozen=True, slots=True)
class Cron:
    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool

    def next_after(self, now: float) -> float:
        """The first minute after ``now`` that matches."""
        at = datetime.fromtimestamp(now, UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
        last_year = at.year + _YEARS
        while at.year <= last_year:
            if at.month not in self.months:
                at = (at.replace(day=1, hour=0, minute=0) + timedelta(days=32)).replace(day=1)
            elif not self._has_day(at):
                at = at.replace(hour=0, minute=0) + timedelta(days=1)
            elif at.hour not in self.hours:
                at = at.replace(minute=0) + timedelta(hours=1)
            elif at.minute not in self.minutes:
                at += timedelta(minutes=1)
            else:
                return at.timestamp()
        raise InvalidArgument(f"the schedule {self.text!r} names no date that exists: {EXAMPLE}")

    def _has_day(self, at: datetime) -> bool:
        by_day, by_weekday = at.day in self.days, at.isoweekday() % 7 in self.weekdays
        return by_day or by_weekday if self.either_day else by_day and by_weekday


Schedule = Every | Cron


def parse_schedule(text: str) -> Schedule:
    """Of ``every 60``, of ``*/5 * * * *``, of ``@daily``."""
    if not isinstance(text, str):
        raise InvalidArgument(f"a schedule is text; it is {text!r}: {EXAMPLE}")
    if text.startswith("every "):
        return Every(float(text.removeprefix("every ")))
    fields = _NAMES.get(text.strip(), text).lower().split()
    if len(fields) != len(_FIELDS):
        raise InvalidArgument(f"the schedule {text!r} has {len(fields)} fields: {EXAMPLE}")
    minutes, hours, days, months, weekdays = (
        _numbers(field, *limits, text) for field, limits in zip(fields, _FIELDS, strict=True)
    )
    either = fields[2][0] != "*" and fields[4][0] != "*"
    cron = Cron(text, minutes, hours, days, months, frozenset(day % 7 for day in weekdays), either)
    cron.next_after(0.0)
    return cron


def _numbers(field: str, what: str, least: int, most: int, text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in field.split(","):
        match = _PART.fullmatch(part)
        if match is None or (match[1] == "*" and match[2]):
            raise InvalidArgument(f"{part!r}, the {what} of the schedule {text!r}, cannot be read: {EXAMPLE}")
        first, last, step = match[1], match[2], int(match[3] or 1)
        if first == "*":
            low, high = least, most
        else:
            low = _number(first, what, text)
            high = _number(last, what, text) if last else (most if match[3] else low)
        if not (least <= low <= high <= most and step >= 1):
            raise InvalidArgument(
                f"{part!r}, the {what} of the schedule {text!r}, is not within {least} to {most}: {EXAMPLE}"
            )
        found.update(range(low, high + 1, step))
    return frozenset(found)


def _number(word: str, what: str, text: str) -> int:
    if word.isdigit():
        return int(word)
    if what == "month" and word in _MONTHS:
        return _MONTHS.index(word) + 1
    if what == "weekday" and word in _WEEKDAYS:
        return _WEEKDAYS.index(word)
    raise InvalidArgument(f"{word!r}, the {what} of the schedule {text!r}, cannot be read: {EXAMPLE}")
