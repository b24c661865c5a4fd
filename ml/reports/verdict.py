"""The run in a few sentences: what ran, what won and by how much, whether its gates pass."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Literal

from ml.backends.base import Run
from ml.reports.facts import Facts
from ml.reports.numbers import count, duration, number, signed
from ml.reports.privacy import headline
from ml.reports.released import Release
from ml.reports.sweeps import Sweep
from policies.promotion.evidence import Evidence

Tone = Literal["good", "bad", "open"]
# Splits that a model was chosen on say too much in its favour.
CHOSEN_ON = ("train", "valid", "dev")


def sentences(facts: Facts) -> tuple[str, ...]:
    """What a person would be told first, the most important sentence first."""
    said = [_sweep(facts.run, facts.sweep) if facts.sweep else _command(facts)]
    said += [
        f"Step {step.name}: {_sweep(step.run, step.sweep)}" for step in facts.steps if step.sweep
    ]
    if facts.release:
        said += _release(facts.release)
    elif facts.quality:
        said += _quality(facts.quality.evidence)
    if not facts.release and "model" in facts.run.outputs and facts.run.status == "Completed":
        said.append(
            "No gate has been asked about its model: "
            f"ml release propose PROJECT --run {facts.run.name}"
        )
    return tuple(said)


def signs(facts: Facts) -> tuple[tuple[str, Tone], ...]:
    """The run's status, and what the gates said, in a word or two each."""
    tones: dict[str, Tone] = {"Completed": "good", "Failed": "bad"}
    status = tones.get(facts.run.status, "open")
    found: list[tuple[str, Tone]] = [(facts.run.status, status)]
    if facts.release and facts.release.decision:
        refused = facts.release.decision.get("outcome") == "refused"
        found.append(("gates refuse", "bad") if refused else ("gates pass", "good"))
    if facts.release and facts.release.is_champion:
        found.append(("champion", "good"))
    return tuple(found)


def held_out(evidence: Evidence) -> str | None:
    """The first split that the model was not chosen on, else the first."""
    splits = list(evidence.metrics)
    kept = [split for split in splits if not split.lower().startswith(CHOSEN_ON)]
    return next(iter(kept + splits), None)


def _took(run: Run) -> str:
    return duration(run.ended - run.started) if run.ended else ""


def _command(facts: Facts) -> str:
    run, took = facts.run, _took(facts.run)
    what = "pipeline" if facts.steps else "job"
    if run.status == "Completed":
        return f"The {what} completed in {took}."
    why = f": {headline(run.error)}" if run.error else ""
    match run.status:
        case "Failed":
            return f"The {what} failed after {took}{why}."
        case "Canceled":
            return f"The {what} was ended after {took}{why}."
        case _:
            return f"The {what} is still going on; this is what is known of it now."


def _sweep(run: Run, sweep: Sweep) -> str:
    took, trials = _took(run), count(len(sweep.trials), "trial")
    ended = {
        "Completed": f"{trials} ran in {took}",
        "Failed": f"The sweep failed: {trials} in {took}",
        "Canceled": f"The sweep was cut short after {took}: {trials}",
    }.get(run.status, f"The sweep is still going on, {trials} so far")
    ranked = sweep.ranked
    if sweep.best is None or not ranked:
        return f"{ended}, and none could be ranked by {sweep.metric}."
    best = sweep.best
    won = f"{ended}; trial {best.number} won with {sweep.metric} {number(best.value or 0.0)}"
    others = [trial for trial in ranked if trial.number != best.number]
    if not others or best.value is None:
        return f"{won}, the only one that completed."
    second, middle = others[0], median(trial.value or 0.0 for trial in ranked)
    ahead = best.value - (second.value or 0.0)
    to_second = (
        f"{number(abs(ahead))} better than the second (trial {second.number})"
        if ahead
        else f"level with trial {second.number}"
    )
    return (
        f"{won}, {to_second} and {number(abs(best.value - middle))} better than the median of "
        f"{count(len(ranked), 'completed trial')}."
    )


def _release(release: Release) -> Iterator[str]:
    yield from _quality(release.evidence)
    split = held_out(release.evidence)
    by = release.better_by(split) if split else None
    if by and release.against:
        sure = "" if by.low > 0 or by.high < 0 else ", which may be chance"
        yield (
            f"Unit by unit it differs from version {release.against.version} by "
            f"{signed(by.mean)} (95 % interval {signed(by.low)} to {signed(by.high)}{sure})."
        )
    decision = release.decision
    if decision is None:
        yield f"The gates have not been asked about {release.name}."
        return
    blocking = [
        str(result.get("gate"))
        for result in decision.get("results", ())
        if result.get("mode") == "enabled" and result.get("verdict") == "fail"
    ]
    waived = ", ".join(
        str(result.get("gate"))
        for result in decision.get("results", ())
        if result.get("verdict") == "waived"
    )
    passing = f"Its gates pass but for {waived}, waived" if waived else "Its gates pass"
    where = (decision.get("request") or {}).get("environment", "")
    who = (decision.get("request") or {}).get("approved_by", "")
    champion = f"; it is the champion of {where}" if release.is_champion else ""
    match decision.get("outcome"):
        case "refused":
            yield f"The gates refuse {release.name} for {where}: {', '.join(blocking)}."
        case "pending":
            yield (
                f"{passing}: {release.name} may go to {where} once somebody approves it{champion}."
            )
        case "approved":
            yield f"{passing}, and {who} approved {release.name} for {where}{champion}."
        case _:
            yield f"{release.name} is the champion of {where} already."


def _quality(evidence: Evidence) -> Iterator[str]:
    split, metric = held_out(evidence), evidence.primary_metric
    if split is None or metric is None:
        return
    ours = evidence.metrics.get(split, {}).get(metric)
    if ours is None or ours.value is None:
        return
    baseline = evidence.baseline.get(split, {}).get(metric)
    beside = baseline.value if baseline else None
    against = f", the baseline {number(beside)}" if beside is not None else ""
    interval = (
        f" (95 % interval {number(ours.low)} to {number(ours.high)})"
        if ours.low is not None and ours.high is not None
        else ""
    )
    yield f"On {split} its model reaches {metric} {number(ours.value)}{interval}{against}."
