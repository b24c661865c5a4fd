"""How good the model is: by split, against baseline and champion, by slice, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ml.reports.charts.bars import Interval, bars, intervals
from ml.reports.facts import Facts
from ml.reports.markup import Html, join, table, tag
from ml.reports.numbers import count, duration, number, signed
from ml.reports.released import Quality
from policies.promotion.evidence import Estimate, Metrics
from policies.promotion.paired import Difference

# Metrics, values of one slice, and features that are listed.
METRICS, SLICES, FEATURES = 20, 40, 15


def quality(facts: Facts) -> Html | None:
    """None when there is no evaluation."""
    found = facts.quality
    if found is None:
        return None
    against = facts.release.against_evidence if facts.release else None
    champion = against.metrics if against else {}
    return tag(
        "section",
        tag("h2", "Quality"),
        tag("p", _source(facts, found), class_="note"),
        _splits(found, champion, facts),
        *(_slice(found, name, of) for name, of in found.slices.items()),
        _contributions(found),
        _steadiness(found),
    )


def _source(facts: Facts, found: Quality) -> str:
    said = [f"From {found.source}; 95 % intervals by bootstrap."]
    release = facts.release
    if release and release.against:
        which = "the champion" if not release.is_champion else "the champion that it replaced"
        said.append(f"Compared with version {release.against.version}, {which}.")
    elif release and release.is_champion:
        said.append("It is the champion; there was none before it.")
    if release and release.against and not release.same_data:
        said.append("Its numbers are of other data: read them with care.")
    return " ".join(said)


def _splits(found: Quality, champion: Metrics, facts: Facts) -> Html:
    evidence = found.evidence
    rows, classes = [], []
    for metric in _metrics(evidence.metrics, evidence.primary_metric):
        every = [
            of.get(metric)
            for table_of in (evidence.metrics, evidence.baseline, champion)
            for of in table_of.values()
        ]
        low, high = _range([one for one in every if one])
        for split, of in evidence.metrics.items():
            if metric not in of:
                continue
            ours = of[metric]
            baseline = evidence.baseline.get(split, {}).get(metric)
            theirs = champion.get(split, {}).get(metric)
            is_primary = metric == evidence.primary_metric
            by = facts.release.better_by(split) if facts.release and is_primary else None
            rows.append(
                [
                    metric,
                    split,
                    _estimate(ours),
                    *([_estimate(baseline)] if evidence.baseline else []),
                    *([_estimate(theirs)] if champion else []),
                    *([_paired(by) if is_primary else ""] if champion else []),
                    intervals(
                        [
                            *_interval("ours", ours),
                            *_interval("baseline", baseline),
                            *_interval("champion", theirs),
                        ],
                        low,
                        high,
                    ),
                ]
            )
            classes.append("best" if is_primary else None)
    head = ["metric", "split", _key("ours", "this model")]
    head += [_key("baseline", "baseline")] if evidence.baseline else []
    head += [_key("champion", "champion"), "paired difference"] if champion else []
    return join(
        [tag("h3", "Metrics by split"), table([*head, "on one scale"], rows, "roomy", classes)]
    )


def _key(kind: str, words: str) -> Html:
    return tag("span", tag("i", "", class_=f"key {kind}"), words, class_="item")


def _metrics(found: Metrics, primary: str | None) -> list[str]:
    names = dict.fromkeys(metric for of in found.values() for metric in of)
    return sorted(names, key=lambda name: name != primary)[:METRICS]


def _estimate(of: Estimate | None) -> Html:
    if of is None or of.value is None:
        return tag("td", "–", class_="n")
    inner: list[object] = [number(of.value)]
    if of.low is not None and of.high is not None:
        inner.append(tag("small", f"{number(of.low)} to {number(of.high)}"))
    said = f"{of.count:,.0f} counted" if of.count is not None and math.isfinite(of.count) else None
    return tag("td", *inner, class_="n", title=said)


def _paired(by: Difference | None) -> Html:
    if by is None:
        return tag("td", "–", class_="n")
    return tag(
        "td",
        signed(by.mean),
        tag("small", f"{signed(by.low)} to {signed(by.high)}"),
        class_="n",
        title=count(by.count, "unit"),
    )


def _interval(kind: str, of: Estimate | None) -> Iterator[Interval]:
    if of and of.value is not None and math.isfinite(of.value):
        low = of.low if of.low is not None and math.isfinite(of.low) else of.value
        high = of.high if of.high is not None and math.isfinite(of.high) else of.value
        yield kind, of.value, low, high


def _range(found: list[Estimate]) -> tuple[float, float]:
    ends = [
        value
        for one in found
        for value in (one.value, one.low, one.high)
        if value is not None and math.isfinite(value)
    ]
    return (min(ends), max(ends)) if ends else (0.0, 1.0)


def _slice(found: Quality, name: str, of: Metrics) -> Html | None:
    metric = found.evidence.primary_metric or ""
    values = {value: metrics[metric] for value, metrics in of.items() if metric in metrics}
    if not values:
        return None
    low, high = _range(list(values.values()))
    worst = sorted(values, key=lambda value: _sortable(values[value], found.evidence.goal))
    rows = [
        [
            value,
            tag("td", number(values[value].count or 0), class_="n"),
            _estimate(values[value]),
            intervals(list(_interval("ours", values[value])), low, high),
        ]
        for value in worst[:SLICES]
    ]
    said = f"{metric}, worst first. "
    if len(worst) > SLICES:
        said += f"{SLICES} of {len(worst)} values. "
    return join(
        [
            tag("h3", f"By {name}"),
            tag("p", said, class_="note"),
            table([name, "count", metric, "on one scale"], rows, "roomy"),
        ]
    )


def _sortable(of: Estimate, goal: str | None) -> float:
    value = of.value if of.value is not None and math.isfinite(of.value) else -math.inf
    return -value if goal == "minimize" else value


def _contributions(found: Quality) -> Html | None:
    if not found.contributions:
        return None
    shares = sorted(found.contributions, key=lambda one: -abs(one[1]))
    rest = len(shares) - FEATURES
    said = f"The {FEATURES} largest of {len(shares)} features." if rest > 0 else None
    return bars("What the model relies on", shares[:FEATURES], said)


def _steadiness(found: Quality) -> Html | None:
    said: Mapping[str, str] = {
        **{
            f"spread of {metric} over refits (standard deviation)": number(spread)
            for metric, spread in found.stability.items()
        },
        **(
            {"training again took": duration(found.training_seconds)}
            if found.training_seconds is not None
            else {}
        ),
        **(
            {"threads": number(found.training_threads)}
            if found.training_threads is not None
            else {}
        ),
    }
    if not said:
        return None
    return join(
        [
            tag("h3", "Stability"),
            tag("dl", *(join([tag("dt", name), tag("dd", value)]) for name, value in said.items())),
        ]
    )
