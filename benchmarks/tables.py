"""Results as Markdown for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .results import Metric, Result, Row, Unit
from .statistics import Summary
from .targets import Outcome

__all__ = ["index", "report", "shown", "targets_section"]

NOTHING = "–"

INTRODUCTION = """
All contestants take turns in short slices within one run. Values are medians, with quartiles in parentheses;
a ratio compares slices of the same round. Absolute values belong to the machine they were measured on: the
ratios are what to compare.
"""

INDEX = """
# Benchmarks of Holdfast

Each engine is measured by itself, beside its peers and its raw limit; the tables and plots are in its folder.
"""


def shown(value: float, unit: Unit) -> str:
    """With three digits and a unit that fits."""
    if unit == "seconds":
        for size, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
            if value >= size:
                return f"{three_digits(value / size)} {name}"
        return f"{three_digits(value / 1e-9)} ns"
    if unit in ("share of a core", "share"):
        return f"{three_digits(value * 100)} %"
    return three_digits(value)


def three_digits(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def with_spread(summary: Summary | None, unit: Unit) -> str:
    if summary is None:
        return NOTHING
    text = shown(summary.value, unit)
    if summary.low is None or summary.high is None or summary.count < 3:
        return text
    return f"{text} ({shown(summary.low, unit)} – {shown(summary.high, unit)})"


def ratio_cell(result: Result, row: Row, metric: Metric) -> str:
    if row.base == row.key:
        return "1"
    ratio = result.ratio(row, metric)
    return NOTHING if ratio is None else with_spread(ratio, "factor")


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    marks = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, marks, *lines))


def result_section(result: Result) -> str:
    metrics = result.metrics_measured()
    header = [""]
    for metric in metrics:
        header += [metric.title] + ["× base"] * metric.compared
    lines = []
    for row in result.rows:
        cells = [f"**{row.label}**" if row.role == "subject" else row.label]
        for metric in metrics:
            cells.append(with_spread(result.summary(row, metric), metric.unit))
            cells += [ratio_cell(result, row, metric)] * metric.compared
        lines.append(cells)
    parts = [
        f"## {result.title}",
        result.how.strip(),
        *bases_line(result),
        *left_out_lines(result.left_out),
        table(header, lines),
    ]
    return "\n\n".join([*parts, f"![{result.title}]({result.key}.svg)"])


def bases_line(result: Result) -> list[str]:
    """Which rows the ratios refer to."""
    if not any(metric.compared for metric in result.metrics):
        return []
    bases = dict.fromkeys(row.base for row in result.rows)
    labels = [row.label for key in bases if (row := result.row(key)) is not None]
    return [f"Base of the ratios: {'; '.join(labels)}."] if labels else []


def left_out_lines(left_out: Mapping[str, str]) -> list[str]:
    """Only the last line of what went wrong: the whole is in the JSON."""
    return [f"Left out, {label}: {text.strip().splitlines()[-1]}" for label, text in left_out.items()]


def targets_section(outcomes: Sequence[Outcome]) -> str:
    return "## Figures to reach\n\n" + targets_table([outcome.as_json() for outcome in outcomes])


def targets_table(outcomes: Sequence[Mapping[str, Any]]) -> str:
    """Of outcomes as they are in the JSON."""
    if not outcomes:
        return "None is set."
    lines = [
        (
            outcome["text"],
            f"{outcome['direction']} {shown(outcome['bound'], outcome['unit'])}",
            NOTHING if outcome["value"] is None else shown(outcome["value"], outcome["unit"]),
            f"**{outcome['verdict']}**" if outcome["verdict"] == "not reached" else outcome["verdict"],
        )
        for outcome in outcomes
    ]
    return table(("", "wanted", "measured", ""), lines)


def _stolen(machine: Mapping[str, Any]) -> str:
    """Whether a virtual machine had its processors to itself. Results of old do not say."""
    if "stolen" not in machine:
        return ""
    return f", {machine['stolen']:.1%} of the processors' time taken by others on the host"


def machine_section(machine: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    servers = "".join(f"{name} {version}, " for name, version in machine["servers"].items())
    return (
        f"Measured {machine['date']} at commit {machine['commit']}: {machine['python']}, SQLite "
        f"{machine['sqlite']}, {servers}{machine['kernel']}, {machine['cpus']} × {machine['processor']}, "
        f"files on {machine['file_system']}, load before the run {machine['load_before']}"
        f"{_stolen(machine)}. {versions}."
    )


def report(
    title: str,
    machine: Mapping[str, Any],
    results: Mapping[str, Result],
    failures: Mapping[str, str],
    left_out: Mapping[str, str],
    outcomes: Sequence[Outcome],
) -> str:
    """The page of one group."""
    failed = [f"## {name}: failed\n\n```\n{text.strip()}\n```" for name, text in failures.items()]
    parts = [
        f"# {title}",
        INTRODUCTION.strip(),
        *([machine_section(machine)] if machine else []),
        *left_out_lines(left_out),
        targets_section(outcomes),
        *(result_section(result) for result in results.values()),
        *failed,
    ]
    return "\n\n".join(parts) + "\n"


def index(documents: Mapping[str, Mapping[str, Any]]) -> str:
    """The page in front of them: folder → what is in its JSON."""
    parts = [INDEX.strip()]
    for folder, document in documents.items():
        parts.append(f"## [{document['title']}]({folder}/README.md)")
        if document["machine"]:
            parts.append(machine_section(document["machine"]))
        parts.append(targets_table(document["targets"]))
    return "\n\n".join(parts) + "\n"
