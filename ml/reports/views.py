"""Prepare the rows and sentences of a run's page for its templates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from ml.core import repository
from ml.measures.contributions import ExplainedRows
from ml.measures.evaluation import PREDICTIONS
from ml.measures.schema import Estimate, Evaluation, Metrics
from ml.measures.tasks import TASKS
from ml.release.comparison import MetricComparison
from ml.release.evidence.recomputation import read_predictions
from ml.release.selection import explanation
from ml.release.selection.selection import Selected
from ml.reports.charts.classification import class_charts, classifier_charts
from ml.reports.charts.contributions import contribution_charts as charts_of_rows
from ml.reports.charts.forecasts import forecast_charts
from ml.reports.charts.intervals import Interval, bars, intervals
from ml.reports.charts.leaderboard import leaderboard_chart
from ml.reports.charts.sweep import REASON_LETTERS, single_curve
from ml.reports.explanation import Importance
from ml.reports.facts import Facts, Step
from ml.reports.formatting import (
    count,
    digest,
    duration,
    headline,
    number,
    redact,
    sentence,
    short,
)
from ml.reports.leaderboard import board_of
from ml.reports.summary import held_out_split
from ml.reports.sweep import OUTCOMES, Sweep, Trial, short_origin

# Maximum rows, columns and cells in the table of trials, so that a page stays below a megabyte.
TRIALS, PARAMETERS, CELLS = 200, 20, 2000
# Maximum rows of other tables: ranked trials, outcomes, metrics, values of a slice, features.
RANKED, REASONS, METRICS, SLICE_VALUES, FEATURES = 20, 8, 20, 40, 15
# Maximum metrics and charts of learning curves: a script may log thousands of metrics.
LAST_METRICS, CURVES = 200, 12
# Maximum characters of a tooltip and of a log line.
TOOLTIP, LOG_LETTERS = 80, 500

UNITS = {"latency": "latency, ms", "cost": "cost, s", "stability": "spread"}


def glance(facts: Facts) -> list[tuple[str, str]]:
    """Return the page's overview of the run as (term, value) pairs."""
    run, sweep, code = facts.run, facts.sweep, facts.lineage.get("code") or {}
    commit = digest(str(code.get("commit") or "")) or "none"
    changes = " + changes" if commit != "none" and code.get("dirty") else ""
    rows = [
        ("started", datetime.fromtimestamp(run.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")),
        ("took", duration(run.ended - run.started) if run.ended else "still running"),
        ("spec", str(facts.lineage.get("spec", ""))),
        ("commit", commit + changes),
    ]
    if sweep:
        outcomes = Counter(trial.outcome for trial in sweep.trials).most_common()
        rows += [
            ("objective", f"{sweep.goal} {sweep.metric}"),
            ("sampling", sweep.sampling),
            ("trials", "; ".join(f"{n:,} {OUTCOMES[outcome]}" for outcome, n in outcomes)),
        ]
    return rows


def log_text(facts: Facts) -> str:
    """Return the last lines of the failed part's log; long lines are cut."""
    lines = [line if len(line) <= LOG_LETTERS else f"{line[:LOG_LETTERS]}…" for line in facts.log]
    return "\n".join(lines) or "The log is empty."


def step_reason(step: Step) -> str:
    """Return why a step failed, was not started, or was reused; "" if it completed."""
    run = step.run
    if run.error:
        return f"{run.error.code}: {headline(run.error)}"
    return f"outputs reused from {run.reused_from}" if run.reused_from else run.ended_by


def curves(facts: Facts) -> list[Markup]:
    """Return a learning curve for each metric that the job logged more than once."""
    charts = (single_curve(metric, curve) for metric, curve in facts.curves.items())
    return [chart for chart in charts if chart]


def leaderboard(sweep: Sweep) -> tuple[Markup | None, list[str]]:
    """Return an AutoML job's leaderboard chart and sentences; (None, []) for another sweep."""
    board = board_of(sweep)
    return (leaderboard_chart(board), [*board.sentences()]) if board else (None, [])


def outcomes(sweep: Sweep) -> list[tuple[str, str, int]]:
    """Return (outcome, reason, count) of trials that did not complete, most frequent first."""
    # Keep only the name of the policy or the code of the problem.
    reasons = Counter(
        (trial.outcome, trial.reason.partition(":")[0].partition(" at interval")[0])
        for trial in sweep.trials
        if trial.outcome != "completed"
    )
    return [(OUTCOMES[outcome], reason, n) for (outcome, reason), n in reasons.most_common()]


def compared_terms(selected: Selected) -> dict[str, str]:
    """Return each term of the selection, except quality → its name and unit."""
    return {term: unit for term, unit in UNITS.items() if term in selected.selection.compared}


def selection_words(selected: Selected) -> tuple[str, str]:
    """Return a text about the rankings by metric and by score, and one about the score."""
    selection = selected.selection
    words = [sentence(text) for text in explanation.sentences(selection)]
    if len(selection.ranked) > RANKED:
        words.append(f"{RANKED} of {len(selection.ranked):,} trials, best first.")
    notes = [f"{explanation.formula(selection)}; {explanation.scale(selection)}."]
    notes += map(sentence, selected.notes)
    return " ".join(words), " ".join(notes)


def importance_chart(importance: Importance) -> Markup:
    """Plot the parameter importance as bars; the caption states its reliability."""
    doubt = ": too low to rely on the shares" if importance.is_weak else ""
    caption = [
        f"Importance of each parameter for the metric, by fANOVA on "
        f"{count(importance.trials, 'completed trial')}. Out-of-bag R² "
        f"{max(0.0, importance.explained):.2f} (1 is perfect, 0 is no better than the mean){doubt}."
    ]
    if importance.excluded:
        caption.append(f"Excluded, as some trials lack them: {', '.join(importance.excluded)}.")
    return bars("Parameter importance", importance.shares, " ".join(caption), importance.is_weak)


@dataclass(frozen=True)
class TrialTable:
    """The table of a sweep's trials."""

    trials: Sequence[Trial]  # the rows
    names: Sequence[str]  # the columns: names of parameters
    note: str  # text below the table: constant parameters, and what is left out


def trial_table(sweep: Sweep) -> TrialTable:
    """Return the table of trials: ranked ones first, then those with a value, then the others."""
    others = [trial for trial in sweep.trials if trial.outcome != "completed"]
    others.sort(key=lambda trial: (trial.value is None, trial.number))
    every = [*sweep.ranked, *others]
    names = sweep.varied[:PARAMETERS]
    trials = every[: min(TRIALS, CELLS // max(1, len(names)))]
    notes = []
    if sweep.constant:
        values = ", ".join(f"{name} = {short(value)}" for name, value in sweep.constant.items())
        notes.append(f"The same in every trial: {values}.")
    if len(trials) < len(every):
        notes.append(f"{len(trials)} of {len(every):,} trials, best first; job.json has all.")
    if len(names) < len(sweep.varied):
        notes.append(f"{len(names)} of {len(sweep.varied)} parameters; job.json has all.")
    return TrialTable(trials, names, " ".join(notes))


def origin(trial: Trial) -> tuple[str, str]:
    """Return the origin of a trial's values, in at most two words and as a sentence."""
    return short_origin(trial.origin), trial.origin_text[:REASON_LETTERS]


def parameter(trial: Trial, name: str) -> tuple[str, str | None, bool]:
    """Return a parameter's shortened value, the full value or None if equal, and `is_number`."""
    if name not in trial.run.parameters:
        return "–", None, True
    value = redact(name, trial.run.parameters[name])
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return short(value), str(value)[:TOOLTIP] if short(value) != str(value) else None, is_number


@dataclass(frozen=True)
class MetricRow:
    """A metric on a split: estimates of the model, the baseline and the champion."""

    metric: str
    split: str
    ours: Estimate
    baseline: Estimate | None
    champion: Estimate | None
    difference: MetricComparison | None
    chart: Markup
    is_primary: bool


def quality_source(facts: Facts) -> str:
    """Return sentences about the source of the metrics and what they are compared with."""
    quality, release = facts.quality, facts.release
    assert quality is not None
    words = [f"From {quality.source}; 95 % intervals by bootstrap."]
    if release and release.against:
        which = "the champion that it replaced" if release.is_champion else "the champion"
        words.append(f"Compared with {release.against.name}, {which}.")
        if unpaired := release.comparison.unpaired:
            words.append(f"There are no paired differences: {unpaired}.")
    elif release and release.is_champion:
        words.append("It is the first champion.")
    return " ".join(words)


def champion_metrics(facts: Facts) -> Metrics:
    """Return the metrics of the version that the model is compared with; {} without one."""
    against = facts.release.against if facts.release else None
    return against.evidence.evaluation.metrics if against else {}


def metric_rows(facts: Facts) -> Iterator[MetricRow]:
    """Yield a row for each metric and split, the primary metric first."""
    assert facts.quality is not None
    evaluation = facts.quality.evaluation
    names = dict.fromkeys(metric for metrics in evaluation.metrics.values() for metric in metrics)
    primary = evaluation.primary_metric
    for metric in sorted(names, key=lambda name: name != primary)[:METRICS]:
        sources = (evaluation.metrics, evaluation.baseline, champion_metrics(facts))
        every = [metrics.get(metric) for source in sources for metrics in source.values()]
        scale = _range([estimate for estimate in every if estimate])
        for split, metrics in evaluation.metrics.items():
            if metric not in metrics:
                continue
            ours = metrics[metric]
            baseline, champion = (source.get(split, {}).get(metric) for source in sources[1:])
            difference = None
            if facts.release and metric == primary:
                difference = facts.release.row(split)
            rows = [
                *_interval("ours", ours),
                *_interval("baseline", baseline),
                *_interval("champion", champion),
            ]
            yield MetricRow(
                metric=metric,
                split=split,
                ours=ours,
                baseline=baseline,
                champion=champion,
                difference=difference,
                chart=intervals(rows, *scale),
                is_primary=metric == primary,
            )


def slice_rows(evaluation: Evaluation, metrics: Metrics) -> list[tuple[str, Estimate, Markup]]:
    """Return (slice's value, primary metric, chart of its interval) of each slice, worst first.

    If the metric is undefined (AUC with one class), the estimate has only the count; these slices
    come last.
    """
    metric = evaluation.primary_metric or ""
    estimates = {
        value: of_value[metric]
        if metric in of_value
        else Estimate(
            count=max((estimate.count for estimate in of_value.values()), default=math.nan)
        )
        for value, of_value in metrics.items()
    }
    sign = -1 if evaluation.goal == "minimize" else 1

    def rank(value: str) -> float:
        estimate = estimates[value].value
        return sign * estimate if math.isfinite(estimate) else math.inf

    scale = _range(list(estimates.values()))
    return [
        (value, estimates[value], intervals(list(_interval("ours", estimates[value])), *scale))
        for value in sorted(estimates, key=rank)
    ]


def rates(metrics: Metrics) -> list[str]:
    """Return which selection and error rates the metrics have; gates may bound them by group."""
    names = ("selection_rate", "false_positive_rate", "false_negative_rate")
    return [name for name in names if any(name in of_value for of_value in metrics.values())]


def contributions_chart(evaluation: Evaluation) -> Markup:
    """Plot the features' shares of the predictions as bars."""
    features = [
        (contribution.feature, contribution.share)
        for contribution in evaluation.contributions
        if contribution.feature is not None and math.isfinite(contribution.share)
    ]
    shares = sorted(features, key=lambda feature: -feature[1])
    caption = f"The {FEATURES} largest of {len(shares)} features." if len(shares) > FEATURES else ""
    return bars("Feature contributions", shares[:FEATURES], caption)


def contribution_charts(facts: Facts) -> tuple[str, list[Markup]]:
    """Return a note ("" or why SHAP values cannot be read) and the charts of explained rows."""
    assert facts.quality is not None
    try:
        rows = ExplainedRows.read(facts.quality.folder)
    except (OSError, ValueError) as error:
        return f"The SHAP values of single rows cannot be read: {error}.", []
    return "", charts_of_rows(rows) if rows else []


def prediction_charts(facts: Facts) -> tuple[str, list[Markup]]:
    """Return a heading and the charts of a classifier's or a forecaster's predictions.

    The charts are [] for another task and for invalid predictions.
    """
    quality = facts.quality
    assert quality is not None
    evaluation = quality.evaluation
    split = held_out_split(evaluation) or ""
    kind = TASKS.get(evaluation.task or "")
    has_positive = kind is not None and kind.target is not None and kind.target.has_positive
    is_forecast = evaluation.task == "forecasting"
    heading = f"{'Forecasts' if is_forecast else 'Classification'} on {split}"
    if kind is None or not (has_positive or kind.has_probabilities or is_forecast):
        return heading, []
    try:
        file = quality.folder / PREDICTIONS
        predictions = read_predictions(file, evaluation)
    except OSError:
        return heading, []
    if predictions.faults:
        return heading, []
    answers = predictions.answers(split)
    if is_forecast:
        units = predictions.rows.get(split, {}).values()
        names = [row.group or row.unit for row in units]
        return heading, forecast_charts(names, answers.forecasts) if names else []
    if has_positive:
        return heading, classifier_charts(answers)
    return heading, class_charts(answers, predictions.probabilities(split))


def stability(facts: Facts) -> list[tuple[str, str]]:
    """Return (term, value) pairs: metrics' standard deviations over refits, time, threads."""
    assert facts.quality is not None
    evaluation = facts.quality.evaluation
    rows = []
    for metric, refits in evaluation.stability.items():
        if not math.isfinite(refits.std):
            continue
        over = f"{len(refits.values)} {refits.over or 'refits'}"
        rows.append((f"standard deviation of {metric} over {over}", number(refits.std)))
    if math.isfinite(evaluation.training.seconds):
        rows.append(("training time", duration(evaluation.training.seconds)))
    if math.isfinite(evaluation.training.threads):
        rows.append(("threads", number(evaluation.training.threads)))
    return rows


def _interval(kind: str, estimate: Estimate | None) -> Iterator[Interval]:
    if estimate and math.isfinite(estimate.value):
        low, high = (
            end if end is not None and math.isfinite(end) else estimate.value
            for end in (estimate.low, estimate.high)
        )
        yield kind, estimate.value, low, high


def _range(estimates: Sequence[Estimate]) -> tuple[float, float]:
    ends = [
        value
        for estimate in estimates
        for value in (estimate.value, estimate.low, estimate.high)
        if value is not None and math.isfinite(value)
    ]
    return (min(ends), max(ends)) if ends else (0.0, 1.0)


# A step of the lineage: its kind, its name, and rows of (term, short value, full value).
Link = tuple[str, str, Sequence[tuple[str, str, str]]]


def lineage(facts: Facts) -> Iterator[Link]:
    """Yield the lineage's steps: data, code, run, and the model version and environment if any."""
    for name, data in (facts.lineage.get("data") or {}).items():
        asset = str(data.get("asset") or data.get("source") or name)
        yield "data", asset, [_full("input", name), _digest("sha256", data.get("digest"))]
    if code := facts.lineage.get("code"):
        yield _code(facts, code)
    yield _run(facts)
    if release := facts.release:
        origin = release.evidence.lineage
        rows = [
            _digest("digest", release.version.digest),
            _digest("features", release.evidence.evaluation.feature_set_hash),
            _digest("evidence", release.version.evidence),
        ]
        if origin.run and origin.run not in {facts.run.id, *(run.id for run in facts.run.trials)}:
            rows.append(_digest("first trained by run", origin.run))
        yield "model version", release.name, rows
        states = {"declared": release.declared, "champion": release.is_champion}
        if any(states.values()):
            state = " and ".join(name for name, is_true in states.items() if is_true)
            yield "environment", "local", [_full("state", state)]


def _code(facts: Facts, code: Mapping[str, Any]) -> Link:
    commit = str(code.get("commit") or "")
    dirty = " with uncommitted changes" if commit and code.get("dirty") else ""
    python = facts.lineage.get("interpreter") or {}
    built = (
        f"built from the conda file as {python['built']}"
        if python.get("built")
        else "this interpreter"
    )
    rows = [
        ("commit", f"{digest(commit)}{dirty}", f"{commit}{dirty}"),
        _digest("snapshot", code.get("digest")),
        _full("environment", str(facts.lineage.get("environment", ""))),
        _full("Python", f"{python.get('python')}, {built}" if python else ""),
    ]
    branch = code.get("branch") or ("no git branch" if commit else "no commit")
    return "code", str(branch), rows


def _run(facts: Facts) -> Link:
    run = facts.run
    rows = [_digest("MLflow id", run.id), _full("spec", str(facts.lineage.get("spec", "")))]
    if facts.sweep and facts.sweep.best:
        best = facts.sweep.best.run
        rows += [_full("best trial", best.name), _digest("best trial's id", best.id)]
    elif facts.lineage.get("parent"):
        rows.append(_digest("sweep", facts.lineage["parent"]))
    rows.append(("folder", repository.shown(run.folder), str(run.folder)))
    rows += [_full(f"output {name}", asset) for name, asset in run.registered.items()]
    return "run", run.name, rows


def _full(term: str, value: str) -> tuple[str, str, str]:
    return term, value, value


def _digest(term: str, value: object) -> tuple[str, str, str]:
    text = str(value or "")
    return term, digest(text), text
