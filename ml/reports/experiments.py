"""An experiment as one page: the verdict, both versions, the interval over time, its terms."""

from __future__ import annotations

from pathlib import Path

from ml.core import files
from ml.release.ab.experiment import Experiment
from ml.release.ab.records import Records
from ml.release.ab.verdict import Count, Verdict
from ml.reports.charts.sequence import interval_over_time
from ml.reports.markup import Html, join, table, tag
from ml.reports.numbers import digest, number, short
from ml.reports.page import document

_WORDS = {
    "better": "B is better",
    "worse": "A is better",
    "no-difference": "no difference",
    "undecided": "undecided",
    "not-to-be-trusted": "not to be trusted",
}
_CLASSES = {"better": "good", "worse": "bad", "no-difference": "dim", "undecided": "open"}


def write(path: Path, experiment: Experiment, records: Records, verdict: Verdict) -> None:
    """The page, whole or not at all."""
    files.replace(path, page(experiment, records, verdict))


def page(experiment: Experiment, records: Records, verdict: Verdict) -> str:
    """One HTML document that needs nothing from outside."""
    name = f"{experiment.name}: {experiment.model} {experiment.a.version} or {experiment.b.version}"
    kind = tag("span", _WORDS[verdict.kind], class_=f"pill {_CLASSES.get(verdict.kind, 'bad')}")
    header = tag(
        "header",
        tag("p", f"A/B experiment in {experiment.environment} ", kind),
        tag("h1", name),
        tag("p", verdict.said, class_="verdict"),
    )
    scale, unit = (100.0, "points") if experiment.outcome == "binary" else (1.0, "as recorded")
    looks = [(n, d * scale, low * scale, high * scale) for n, d, low, high in verdict.history]
    chart = interval_over_time("Interval over time", looks, experiment.effect * scale, unit)
    main = tag(
        "main",
        chart,
        tag("h2", "Versions"),
        table(
            ["", "version", "digest", "keys", "outcomes", "mean"],
            [
                _row("A", experiment.a.version, experiment.a.digest, verdict.a),
                _row("B", experiment.b.version, experiment.b.digest, verdict.b),
            ],
        ),
        tag("h2", "Terms"),
        _terms(experiment, records, verdict),
    )
    return document(name, header, main, f"by ml ab report {experiment.name}.")


def _row(arm: str, version: str, sha256: str, count: Count) -> list[object]:
    mean = "–" if count.mean is None else number(count.mean)
    figures = [f"{count.assigned:,}", f"{count.outcomes:,}", mean]
    return [arm, version, digest(sha256), *(tag("td", one, class_="n") for one in figures)]


def _terms(experiment: Experiment, records: Records, verdict: Verdict) -> Html:
    said = {
        "outcome": f"{experiment.outcome}, to {experiment.goal}",
        "would matter": short(experiment.effect),
        "chance of a wrong verdict": short(experiment.alpha),
        "outcomes planned": f"{verdict.planned:,} ({experiment.fixed:,} if looked at once)",
        "B's share": f"{experiment.share} %",
        "as declared": verdict.mismatch or "yes: who was assigned, and whose outcomes came",
        "left out": f"{records.repeated} repeated, {records.contradicting} contradicting, "
        f"{records.unreadable} unreadable lines",
        "begun": experiment.started[:16],
    }
    return tag("dl", join(join([tag("dt", name), tag("dd", of)]) for name, of in said.items()))
