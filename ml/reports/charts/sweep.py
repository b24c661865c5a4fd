"""Chart a sweep's trials: history, parallel coordinates, learning curves, Pareto front."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt
from markupsafe import Markup

from ml.backends.runs import Curve
from ml.release.selection.selection import Ranked, Selection
from ml.reports.charts import svg
from ml.reports.charts.scales import Scale, axis, bounds, scale_of, scale_of_metric
from ml.reports.formatting import count, number, redact, short, shorten
from ml.reports.sweep import Sweep, Trial
from ml.sweeps.objective import is_better

WIDTH = 1090
# Tooltips: maximum parameters, characters of a name or value, characters of a reason, and trials of
# a sweep whose tooltips have parameters.
TOOLTIP_NAMES, TOOLTIP_LETTERS, REASON_LETTERS, TOOLTIP_TRIALS = 12, 24, 160, 200
# Parallel coordinates: maximum parameter axes and lines.
AXES, LINES = 12, 300
# Learning curves: maximum curves of a chart and values of a curve.
CURVES, CURVE_VALUES = 60, 100
# Where a line crosses an axis on which it has no value: below the axis, as a share of its length.
NO_VALUE = -0.12
# The terms of a selection's score that may be plotted against quality → title of the axis.
TERMS = {
    "latency": "latency of a prediction, ms",
    "cost": "cost, node seconds",
    "stability": "spread over seeds",
}
# Kind of trial → settings of its marks, and of its lines; later kinds are drawn on top.
MARKS: Mapping[str, Mapping[str, Any]] = {
    "failed": {"shape": "M-1,-1L1,1M1,-1L-1,1", "filled": False, "strokeWidth": 2, "size": 64},
    "stopped": {"shape": "triangle-down", "size": 64},
    "done": {"size": 50},
    "best": {"size": 113},
}
LINES_OF_KIND: Mapping[str, Mapping[str, Any]] = {
    "failed": {"strokeDash": [2, 4], "opacity": 0.7},
    "stopped": {"strokeDash": [4, 3], "opacity": 0.7},
    **{f"q{fifth}": {"opacity": 0.75} for fifth in range(1, 6)},
    "best": {"strokeWidth": 3},
}


def history(sweep: Sweep) -> Markup | None:
    """Plot the trials' values in order, and the best so far; None if no trial has a value."""
    values = [trial.value for trial in sweep.trials if trial.value is not None]
    if not values:
        return None
    (low, high), last = bounds(values), len(sweep.trials) - 1
    x = alt.X("x:Q", title="trial", **axis(-0.5, last + 0.5, 12, is_integer=True, offset=36))
    y = alt.Y("y:Q", title=sweep.metric, **axis(low, high))
    # Draw trials without a value below the chart.
    under = alt.value(alt.expr("height + 18"))
    layers = []
    if steps := _best_so_far(sweep):
        line = svg.rows({"x": trial, "y": value} for trial, value in steps)
        layers.append(line.mark_line(interpolate="step-after", color="var(--accent)").encode(x, y))
    is_small, style = len(sweep.trials) <= TOOLTIP_TRIALS, styles(sweep)
    rows: dict[tuple[str, bool], list[Mapping[str, object]]] = {}
    for trial in sweep.trials:
        kind, words = style[trial.number], tooltip(sweep, trial)
        words = words if is_small else words.partition("\n")[0]
        group = (kind if kind in MARKS else "done", trial.value is not None)
        row = {"x": trial.number, "y": trial.value, "words": words}
        rows.setdefault(group, []).append(row)
    for kind, has_value in sorted(rows, key=lambda group: [*MARKS].index(group[0])):
        mark = MARKS[kind] if is_small or kind == "best" else {**MARKS[kind], "size": 20}
        marks = svg.rows(rows[kind, has_value]).mark_point(**mark, color=svg.colour(kind))
        layers.append(svg.pointed(marks.encode(x, y=y if has_value else under)))
    if len(values) < len(sweep.trials):
        words = svg.rows([{}]).mark_text(text="no value", align="right")
        layers.append(words.encode(x=alt.value(-6), y=under))
    caption = "Trials in the order in which they started."
    if outside := sum(not low <= value <= high for value in values):
        caption += f" {count(outside, 'outlier')} drawn at the edge."
    classes = {
        "line": bool(steps),
        "best": sweep.best is not None,
        "done": bool(sweep.with_outcome("completed")),
        "stopped": bool(sweep.with_outcome("stopped")),
        "failed": bool(sweep.with_outcome("failed", "unranked", "canceled", "running")),
    }
    legend = [kind for kind, is_present in classes.items() if is_present]
    return svg.figure("History", alt.layer(*layers), WIDTH, 320, caption, legend)


def parallel(sweep: Sweep, first: Sequence[str] = ()) -> Markup | None:
    """Plot parallel coordinates: a line per trial through its parameters and its metric.

    `first` lists the important parameters, whose axes come first; parameters beyond AXES are left
    out. Returns None if there are fewer than two trials, no values, or no differing parameters.
    """
    values = [trial.value for trial in sweep.trials if trial.value is not None]
    every = [*first, *(name for name in sweep.varied if name not in first)]
    if not values or not every or len(sweep.trials) < 2:
        return None
    names, lines = every[:AXES], _sample(sweep, sweep.trials, LINES)
    columns = [
        [_value(trial, name) if name in trial.run.parameters else None for trial in sweep.trials]
        for name in names
    ]
    scales = [*map(scale_of, columns), scale_of_metric(values)]
    columns.append([trial.value for trial in sweep.trials])
    points: dict[int, list[tuple[float, float]]] = {trial.number: [] for trial in lines}
    incomplete = set()
    for place, (column, scale) in enumerate(zip(columns, scales, strict=True)):
        for trial, value in zip(sweep.trials, column, strict=True):
            if value is None:
                incomplete.add(place)
            if trial.number in points:
                share = NO_VALUE if value is None else scale.shares[str(value)]
                points[trial.number].append((place, share))
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, len(names)]))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[0, 1]))
    layers = [alt.layer(*_lines(sweep, lines, points, x, y))]
    for place, (name, scale) in enumerate(zip([*names, sweep.metric], scales, strict=True)):
        layers.append(_parameter_axis(name, scale, place, len(names)))
    none = svg.rows({"x": place, "y": NO_VALUE} for place in incomplete)
    layers.append(none.mark_text(text="none", align="left", dx=6).encode(x, y))
    caption = [f"One line per trial, coloured by {sweep.metric}; point at a line to read it."]
    if first:
        caption.append("The most important parameters come first.")
    if len(lines) < len(sweep.trials):
        total = count(len(sweep.trials), "trial")
        caption.append(f"{len(lines):,} of {total} drawn: the best, and an even sample.")
    if len(names) < len(every):
        caption.append(
            f"{len(names)} of {len(every)} parameters drawn; the table of trials has more."
        )
    style = styles(sweep)
    legend = [style[trial.number] for trial in lines]
    chart = alt.layer(*layers).resolve_scale(y="independent")
    return svg.figure("Parallel coordinates", chart, WIDTH, 362, " ".join(caption), legend)


def _parameter_axis(name: str, scale: Scale, place: int, last: int) -> alt.Chart:
    """Return the vertical axis with index `place`; index `last` is the metric's axis."""
    tail, letter = 60.0, 8.2
    step = (WIDTH - 2 * tail) / last
    is_last = place == last
    width = tail + step if is_last else min(2 * step, 2 * (tail + place * step))
    axis = {
        **scale.axis,
        "orient": "right",
        "offset": alt.expr(f"{place / last - 1} * width"),
        "zindex": 1,  # above the lines
        "labelColor": "var(--ink)",
        "grid": False,
        "domain": True,
        "ticks": True,
        "title": shorten(name, int(width / letter) - 1),
        # Alternate the height of the titles, so that long names do not overlap.
        "titleY": -32 if place % 2 else -14,
        "titleX": 0,
        "titleAlign": "right" if is_last else "center",
        "titleColor": "var(--best)" if is_last else "var(--ink)",
        "aria": True,
        "description": name,
    }
    value = scale.scale["domain"][0]
    kind = "nominal" if scale.scale["type"] == "point" else "quantitative"
    y = alt.Y("y", type=kind, scale=scale.scale, axis=axis)
    return svg.rows([{"x": 0, "y": value}]).mark_point(opacity=0).encode(y)


def _lines(
    sweep: Sweep,
    trials: Sequence[Trial],
    points: Mapping[int, Sequence[tuple[float, float]]],
    *channels: alt.X | alt.Y,
) -> Iterator[alt.Chart]:
    """Yield a chart of the trials' lines for each kind of trial, the best last, on top."""
    style = styles(sweep)
    for kind, mark in LINES_OF_KIND.items():
        rows = [
            {"x": x, "y": y, "trial": trial.number, "words": words}
            for trial in trials
            if style[trial.number] == kind
            for words in [tooltip(sweep, trial)]
            for x, y in points[trial.number]
        ]
        if rows:
            lines = svg.rows(rows).mark_line(**mark, color=svg.colour(kind))
            yield svg.pointed(lines.encode(*channels, detail="trial:Q"))


def learning(sweep: Sweep) -> Markup | None:
    """Plot each trial's primary metric over its steps; None if no trial logged it twice."""
    trials = [trial for trial in sweep.trials if len(_finite(trial.curve)) > 1]
    if not trials:
        return None
    lines = _sample(sweep, trials, CURVES)
    curves = {trial.number: _thin(_finite(_by_step(trial.curve))) for trial in lines}
    x, y = _curve_axes(sweep.metric, [point for curve in curves.values() for point in curve])
    layers = [*_lines(sweep, lines, curves, x, y)]
    style = styles(sweep)
    if stopped := [trial for trial in lines if style[trial.number] == "stopped"]:
        ends = svg.rows(
            {"x": step, "y": value, "words": tooltip(sweep, trial)}
            for trial in stopped
            for step, value in curves[trial.number][-1:]
        )
        marks = ends.mark_point(**MARKS["stopped"], color=svg.colour("stopped"))
        layers.append(svg.pointed(marks.encode(x, y)))
    where = "; a triangle marks where a policy stopped it" if stopped else ""
    caption = [f"One line per trial, coloured by its rank{where}."]
    if len(lines) < len(trials):
        caption.append(
            f"{len(lines)} of {len(trials):,} curves drawn: the best, and an even sample."
        )
    if any(len(trial.curve) > CURVE_VALUES for trial in lines):
        caption.append(f"Long curves are downsampled to {CURVE_VALUES} values.")
    legend = [style[trial.number] for trial in lines]
    chart = alt.layer(*layers)
    return svg.figure("Learning curves", chart, WIDTH, 340, " ".join(caption), legend)


def single_curve(metric: str, curve: Curve) -> Markup | None:
    """Plot a metric of a run over its steps; None if it has fewer than two finite values."""
    finite = _finite(_by_step(curve))
    if len(finite) < 2:
        return None
    thin = _thin(finite)
    words = f"{metric}: last {number(curve[-1][1])}"
    line = svg.rows({"x": step, "y": value, "words": words} for step, value in thin)
    drawn = line.mark_line(strokeWidth=3, color="var(--best)")
    lost = len(curve) - len(finite)
    caption = f"{count(lost, 'value')} NaN or infinite, not drawn." if lost else ""
    chart = svg.pointed(drawn.encode(*_curve_axes("", thin)))
    return svg.figure(metric, chart, 480, 200, caption)


def _curve_axes(metric: str, points: Sequence[tuple[float, float]]) -> tuple[alt.X, alt.Y]:
    steps = [step for step, _ in points]
    x = axis(min(steps), max(steps), 8, is_integer=True)
    y = axis(*bounds([value for _, value in points]))
    return alt.X("x:Q", title="step", **x), alt.Y("y:Q", title=metric, **y)


def styles(sweep: Sweep) -> Mapping[int, str]:
    """Return trial number → kind: best, q5 (best fifth) … q1 if completed, stopped, or failed."""
    ranked = sweep.ranked
    style = {trial.number: f"q{5 - 5 * place // len(ranked)}" for place, trial in enumerate(ranked)}
    for trial in sweep.trials:
        if trial.number not in style:
            style[trial.number] = "stopped" if trial.outcome == "stopped" else "failed"
    if sweep.best:
        style[sweep.best.number] = "best"
    return style


def tooltip(sweep: Sweep, trial: Trial) -> str:
    """Return a trial's tooltip: lines with value and outcome, parameters, and origin if known."""
    value = "no value" if trial.value is None else f"{short(sweep.metric)} {number(trial.value)}"
    parameters = ", ".join(
        "=".join(shorten(short(part), TOOLTIP_LETTERS) for part in (name, _value(trial, name)))
        for name in sweep.varied[:TOOLTIP_NAMES]
        if name in trial.run.parameters
    )
    outcome = {"stopped": "stopped early", "unranked": "not ranked"}.get(
        trial.outcome, trial.outcome
    )
    reason = f" ({trial.reason[:REASON_LETTERS]})" if trial.reason else ""
    lines = [f"trial {trial.number}: {value}, {outcome}{reason}", parameters]
    if trial.origin:
        lines.append(trial.origin_text[:REASON_LETTERS])
    return "\n".join(lines)


def _best_so_far(sweep: Sweep) -> list[tuple[float, float]]:
    """Return (trial number, value) at each new best trial, and a last point to extend the line."""
    steps: list[tuple[float, float]] = []
    for trial in sweep.with_outcome("completed"):
        assert trial.value is not None
        if not steps or is_better(trial.value, steps[-1][1], sweep.goal):
            steps.append((trial.number, trial.value))
    return [*steps, (len(sweep.trials) - 0.5, steps[-1][1])] if steps else []


def _value(trial: Trial, name: str) -> object:
    return redact(name, trial.run.parameters[name])


def _sample(sweep: Sweep, trials: Sequence[Trial], most: int) -> list[Trial]:
    """Return at most `most` trials in order: a fifth are the best ones, the rest evenly spaced."""
    if len(trials) <= most:
        return list(trials)
    numbers = {trial.number for trial in trials}
    top = [trial.number for trial in sweep.ranked if trial.number in numbers][: most // 5]
    others = [trial.number for trial in trials if trial.number not in set(top)]
    chosen = {*top, *svg.evenly(others, most - len(top))}
    return [trial for trial in trials if trial.number in chosen]


def _by_step(curve: Curve) -> Curve:
    """Return the curve sorted by step, or with positions as steps if the script logged none."""
    if len({step for step, _ in curve}) > 1:
        return tuple(sorted(curve, key=lambda point: point[0]))
    return tuple((place, value) for place, (_, value) in enumerate(curve, 1))


def _finite(curve: Curve) -> Curve:
    return tuple((step, value) for step, value in curve if math.isfinite(value))


def _thin(curve: Curve) -> Curve:
    return tuple(curve[place] for place in svg.evenly(range(len(curve)), CURVE_VALUES))


def pareto(selection: Selection) -> Markup | None:
    """Plot quality against the term that affects the score most; None without such a term."""
    term = _decisive_term(selection)
    trials = [trial for trial in selection.ranked if term and term not in trial.missing]
    if term is None or len(trials) < 2:
        return None
    across, up = ([_term(trial, name) for trial in trials] for name in (term, "quality"))
    x = alt.X("x:Q", title=TERMS[term], **axis(*bounds(across)))
    y = alt.Y("y:Q", title=selection.metric, **axis(*bounds(up)))
    legend = [_pareto_class(selection, trial) for trial in trials]
    layers = []
    # LEGENDS ends with the most important kinds, so these are drawn on top.
    for kind in (kind for kind in svg.LEGENDS if kind in legend):
        rows = svg.rows(
            {
                "x": _term(trial, term),
                "y": _term(trial, "quality"),
                "words": _pareto_tooltip(selection, trial),
            }
            for trial, its in zip(trials, legend, strict=True)
            if its == kind
        )
        size = 154 if kind in ("score", "metric") else 64
        marks = rows.mark_point(size=size, color=svg.colour(kind))
        layers.append(svg.pointed(marks.encode(x, y)))
    caption = (
        "A trial is on the Pareto front when no other trial is at least as good in every measured "
        f"term ({', '.join(_names(selection))}) and better in one."
    )
    return svg.figure("Pareto front", alt.layer(*layers), 600, 320, caption, legend)


def _decisive_term(selection: Selection) -> str | None:
    """Return the term, except quality, that varies most in its part of the score; None if none."""
    terms = [term for term in TERMS if term in selection.compared]

    def ranges(term: str) -> tuple[float, float]:
        trials = [trial for trial in selection.ranked if term not in trial.missing]
        parts = [trial.parts[term] for trial in trials]
        values = [_term(trial, term) for trial in trials]
        largest = max(map(abs, values)) or 1.0
        return max(parts) - min(parts), (max(values) - min(values)) / largest

    return max(terms, key=ranges, default=None)


def _pareto_class(selection: Selection, trial: Ranked) -> str:
    if selection.by_score is trial:
        return "score"
    if selection.by_metric is trial:
        return "metric"
    return "front" if trial.on_front else "beaten"


def _pareto_tooltip(selection: Selection, trial: Ranked) -> str:
    behind = selection.behind(trial)
    score = "no score" if behind is None else f"{behind:.2f} behind the best score"
    values = ", ".join(
        f"{name} {number(_term(trial, term))}"
        for term, name in zip(selection.compared, _names(selection), strict=True)
        if term not in trial.missing
    )
    rank = f"{trial.by_metric}. by {selection.metric}"
    return f"{trial.candidate.label}: {score}, {rank}\n{values}"


def _names(selection: Selection) -> Sequence[str]:
    return ["spread" if term == "stability" else term for term in selection.compared]


def _term(trial: Ranked, term: str) -> float:
    value = trial.candidate.terms[term]
    assert value is not None  # callers skip the terms in `missing`
    return value
