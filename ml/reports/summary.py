"""Summarize a run in a few sentences: what ran, which trial won, whether the gates pass."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import Literal

from ml.backends.runs import Entry, Run
from ml.measures.schema import Evaluation
from ml.release.comparison import metric_sign
from ml.release.declaration.desired_state import LOCAL
from ml.reports.facts import Facts, Release
from ml.reports.formatting import DIRECTIONS, count, duration, headline, number, signed
from ml.reports.sweep import Sweep

Tone = Literal["good", "bad", "open"]
# Name prefixes of splits that were used to select the model: their metrics are optimistic.
SELECTION_SPLITS = ("train", "valid", "dev")


def sentences(facts: Facts) -> tuple[str, ...]:
    """Return the sentences of the summary, the most important first."""
    run, release = facts.run, facts.release
    words = [_sweep(run, facts.sweep) if facts.sweep else _job(facts)]
    words += [
        f"Step {step.name}: {_sweep(step.run, step.sweep)}" for step in facts.steps if step.sweep
    ]
    if release:
        words += [*_quality(release.evidence.evaluation), *_difference(release), _decision(release)]
    elif facts.quality:
        words += _quality(facts.quality.evaluation)
    if not release and "model" in run.outputs and run.status == "Completed":
        project = Entry(run, facts.kind, facts.lineage).project or "PROJECT"
        words.append(
            f"The gates have not run on its model; next: ml release propose {project} "
            f"--run {run.name}"
        )
    return tuple(words)


def badges(facts: Facts) -> tuple[tuple[str, Tone], ...]:
    """Return (text, tone) of the run's badges: status, gates' verdict, champion."""
    tones: dict[str, Tone] = {"Completed": "good", "Failed": "bad"}
    words: list[tuple[str, Tone]] = [(facts.run.status, tones.get(facts.run.status, "open"))]
    if facts.release and facts.release.decision:
        refused = facts.release.decision.get("outcome") == "rejected"
        words.append(("gates fail", "bad") if refused else ("gates pass", "good"))
    if facts.release and facts.release.is_champion:
        words.append(("champion", "good"))
    return tuple(words)


def held_out_split(evaluation: Evaluation) -> str | None:
    """Return the first split that was not used to select the model, else the first split.

    Returns None without metrics.
    """
    splits = list(evaluation.metrics)
    held_out = [split for split in splits if not split.lower().startswith(SELECTION_SPLITS)]
    return next(iter(held_out + splits), None)


def _took(run: Run) -> str:
    return duration(run.ended - run.started) if run.ended else ""


def _job(facts: Facts) -> str:
    run, took = facts.run, _took(facts.run)
    error = f": {headline(run.error)}" if run.error else ""
    match run.status:
        case "Completed":
            return f"The {facts.kind} completed in {took}."
        case "Failed":
            return f"The {facts.kind} failed after {took}{error}."
        case "Canceled":
            return f"The {facts.kind} was canceled after {took}{error}."
        case _:
            return f"The {facts.kind} is still running; this page shows its state so far."


def _sweep(run: Run, sweep: Sweep) -> str:
    took, trials = _took(run), count(len(sweep.trials), "trial")
    ran = {
        "Completed": f"{trials} ran in {took}",
        "Failed": f"The sweep failed: {trials} in {took}",
        "Canceled": f"The sweep was canceled after {took}: {trials}",
    }.get(run.status, f"The sweep is still running: {trials} so far")
    best, ranked = sweep.best, sweep.ranked
    if best is None or best.value is None or not ranked:
        return f"{ran}, and none could be ranked by {sweep.metric}."
    won = f"{ran}; trial {best.number} won with {sweep.metric} {number(best.value)}"
    others = [trial for trial in ranked if trial.number != best.number]
    if not others:
        return f"{won}, the only one that completed."
    second, middle = others[0], median(trial.value or 0.0 for trial in ranked)
    ahead = best.value - (second.value or 0.0)
    to_second = (
        f"{number(abs(ahead))} better than the second (trial {second.number})"
        if ahead
        else f"tied with trial {second.number}"
    )
    return (
        f"{won}, {to_second} and {number(abs(best.value - middle))} better than the median of "
        f"{count(len(ranked), 'completed trial')}."
    )


def _quality(evaluation: Evaluation) -> Iterator[str]:
    split, metric = held_out_split(evaluation), evaluation.primary_metric
    if split is None or metric is None:
        return
    estimate = evaluation.metrics.get(split, {}).get(metric)
    better = DIRECTIONS[metric_sign(evaluation, metric)]
    if estimate is None or not math.isfinite(estimate.value):
        return
    details = [better] if better else []
    if math.isfinite(estimate.low) and math.isfinite(estimate.high):
        details.append(f"95 % interval {number(estimate.low)} to {number(estimate.high)}")
    baseline = evaluation.baseline.get(split, {}).get(metric)
    if baseline and math.isfinite(baseline.value):
        details.append(f"baseline {number(baseline.value)}")
    if math.isfinite(linear := evaluation.linear.get(metric, math.nan)):
        details.append(f"linear model {number(linear)}")
    more = f" ({'; '.join(details)})" if details else ""
    yield f"The model's {metric} on {split} is {number(estimate.value)}{more}."


def _difference(release: Release) -> Iterator[str]:
    split = held_out_split(release.evidence.evaluation)
    row = release.row(split) if split else None
    if row and (difference := row.difference) and release.against:
        yield (
            f"The paired difference to {release.against.name} is "
            f"{signed(difference.mean)} (95 % interval {signed(difference.low)} to "
            f"{signed(difference.high)}): {row.verdict or 'not significant'}."
        )


def _decision(release: Release) -> str:
    decision, name = release.decision, release.name
    if decision is None:
        return f"The gates have not run on {name}."
    results = decision.get("results", ())
    waived = [str(result.get("gate")) for result in results if result.get("verdict") == "waived"]
    failed = [
        str(result.get("gate"))
        for result in results
        if result.get("mode") == "enabled" and result.get("verdict") == "fail"
    ]
    request = decision.get("request") or {}
    environment, approver = request.get("environment", ""), request.get("approved_by", "")
    if request.get("simulated") and environment != LOCAL:
        environment += ", simulated on one machine"
    passes = f"The gates pass except {', '.join(waived)} (waived)" if waived else "The gates pass"
    champion = f"; it is the champion of {environment}" if release.is_champion else ""
    match decision.get("outcome"):
        case "rejected":
            return f"The gates reject {name} for {environment}: {', '.join(failed)}."
        case "pending":
            return f"{passes}; {name} needs an approval for {environment}{champion}."
        case _:
            return f"{passes}, and {approver} approved {name} for {environment}{champion}."
