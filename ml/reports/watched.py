"""A watched model as one page, and the same as JSON beside it."""

from __future__ import annotations

import json
from pathlib import Path

from ml.core import faults, files, home
from ml.release.watch.drift import Finding
from ml.release.watch.report import Report
from ml.reports.charts.bars import intervals
from ml.reports.markup import Html, join, table, tag
from ml.reports.numbers import count, digest, number, short
from ml.reports.page import document

_CLASSES = {"breach": "bad", "no-breach": "good", "too-few": "open"}
_WORDS = {"breach": "breach", "no-breach": "no breach", "too-few": "too few rows"}


def write(report: Report, path: Path | None = None) -> Path:
    """Write both files; returns the page's. Raises Refused when the disk is full."""
    name = f"watch-{report.model}-{report.environment}.html"
    place = path or home.home() / "reports" / name
    with faults.as_refusals():
        files.replace(place, page(report))
        text = json.dumps(report.to_json(), indent=1, allow_nan=False)
        files.replace(place.with_suffix(".json"), text + "\n")
    return place


def page(report: Report) -> str:
    """One HTML document that needs nothing from outside."""
    name = f"{report.model} {report.version} in {report.environment}"
    pill = tag("span", _WORDS[report.outcome], class_=f"pill {_CLASSES[report.outcome]}")
    header = tag(
        "header",
        tag("p", "Watched ", pill),
        tag("h1", name),
        tag("p", report.said, class_="verdict"),
    )
    main = tag("main", _notes(report), _findings(report), _terms(report))
    return document(f"watch · {name}", header, main, f"by ml watch {report.model}.")


def _notes(report: Report) -> Html | None:
    if not report.notes:
        return None
    return tag("div", *(tag("p", note, class_="problem") for note in report.notes))


def _findings(report: Report) -> Html | None:
    if not report.findings:
        return None
    head = ["column", "verdict", "compared by", "size", "breach from", "size in limits", "p", ""]
    rows = [_row(one) for one in report.findings]
    return join([tag("h2", "Comparisons, worst first"), table(head, rows, "roomy")])


def _row(one: Finding) -> list[object]:
    verdict = (
        tag("td", "✗ breach", class_="bad whole")
        if one.is_breach
        else tag("td", "✓", class_="good")
    )
    figures = [number(one.size), short(one.limit)]
    share = one.size / one.limit if one.size == one.size else 0.0
    kind = "breach" if one.is_breach else "baseline"
    drawn = intervals([(kind, min(share, 3.0), 0.0, min(max(share, 0.0), 3.0))], 0.0, 3.0)
    return [
        one.column,
        verdict,
        one.test,
        *(tag("td", figure, class_="n") for figure in figures),
        drawn,
        tag("td", number(one.p), class_="n"),
        one.said,
    ]


def _terms(report: Report) -> Html:
    limits = report.limits
    said = {
        "rows": f"{report.rows:,} (at least {count(int(limits.min_rows), 'row')} are judged)",
        "chance of a false alarm": f"at most {limits.alpha:g} of a report",
        "model": digest(report.digest),
        "not compared": ", ".join(limits.ignore) or "–",
        "a breach": "a corrected p of no more than that chance, and a size of the limit or more",
    }
    pairs = (join([tag("dt", name), tag("dd", of)]) for name, of in said.items())
    return join([tag("h2", "Terms"), tag("dl", *pairs)])
