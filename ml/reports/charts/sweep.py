"""Charts of a sweep's trials: history, parallel coordinates, learning curves, Pareto front."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from ml.backends.runs import Curve
from ml.release.selection.selection import Ranked, Selection
from ml.reports.charts import svg
from ml.reports.charts.scales import Linear, Scale, bounds, scale_of
from ml.reports.formatting import count, number, redact, short, shorten
from ml.reports.sweep import Sweep, Trial
from ml.sweeps.objective import is_better

WIDTH, LEFT, RIGHT, TOP = 1090.0, 60.0, 1075.0, 34.0
# Parameters in a tooltip, letters of a reason in it, and trials beyond which it has no parameters.
TOOLTIP_NAMES, REASON_LETTERS, TOOLTIP_TRIALS = 12, 160, 200
# Parallel coordinates: more axes and lines than these nobody can tell apart.
AXES, LINES = 12, 300
# Learning curves: the most curves of one chart, and the most values of one curve.
CURVES, CURVE_VALUES = 60, 100
# The terms of a selection that are drawn against quality, each with the label of its axis.
TERMS = {
    "latency": "latency of a prediction, ms",
    "cost": "cost, seconds of a node",
    "stability": "spread over seeds",
}


def history(sweep: Sweep) -> Markup | None:
    """Every trial by its outcome, and the best so far; None when no trial has a value."""
    values = [trial.value for trial in sweep.trials if trial.value is not None]
    if not values:
        return None
    bottom, strip = 250.0, 268.0  # trials without a value are on a strip under the chart
    low, high = bounds(values)
    y = Linear(low, high, bottom, TOP)
    x = Linear(-0.5, max(len(sweep.trials) - 0.5, 0.5), LEFT, RIGHT)
    numbers = Linear(
        0, len(sweep.trials) - 1, x(0), x(len(sweep.trials) - 1), is_integer=True
    ).ticks(12)
    marks = [
        svg.left_axis(y, LEFT, RIGHT, sweep.metric, TOP),
        svg.text("trial", RIGHT, strip + 44, "label", "end"),
        *(svg.text(tick, place, strip + 26, anchor="middle") for place, tick in numbers),
    ]
    if steps := _best_so_far(sweep):
        corners = [(x(trial), y(value)) for trial, value in steps]
        marks.append(svg.polyline([*corners, (RIGHT, corners[-1][1])], "line"))
    style = styles(sweep)
    has_parameters = len(sweep.trials) <= TOOLTIP_TRIALS
    for trial in sweep.trials:
        words = tooltip(sweep, trial)
        height = strip if trial.value is None else y(trial.value)
        kind = "failed" if trial.value is None else style[trial.number]
        radius = 6.0 if kind == "best" else 4.0 if has_parameters else 2.5
        title = words if has_parameters else words.partition("\n")[0]
        marks.append(_mark(kind, x(trial.number), height, radius, title, trial.number))
    if len(values) < len(sweep.trials):
        marks.append(svg.text("no value", LEFT - 6, strip + 3.5, anchor="end"))
    caption = "Trials in the order in which they started."
    if outside := sum(not low <= value <= high for value in values):
        caption += f" {count(outside, 'trial')} far outside drawn at the edge."
    classes = {
        "line": bool(steps),
        "best": sweep.best is not None,
        "done": bool(sweep.of("completed")),
        "stopped": bool(sweep.of("stopped")),
        "failed": bool(sweep.of("failed", "unranked", "canceled", "running")),
    }
    legend = [kind for kind, is_present in classes.items() if is_present]
    return svg.figure("History", WIDTH, 320.0, marks, caption, legend)


def parallel(sweep: Sweep, first: Sequence[str] = ()) -> Markup | None:
    """A line per trial through its parameters to its value.

    `first` are parameters by their importance: they come first, and stay when there are more than
    AXES. None without a parameter that differs, a second trial, or a trial with a value.
    """
    values = [trial.value for trial in sweep.trials if trial.value is not None]
    every = [*first, *(name for name in sweep.varied if name not in first)]
    if not values or not every or len(sweep.trials) < 2:
        return None
    top, bottom, missing, left, tail = 58.0, 320.0, 350.0, 70.0, 60.0
    names = every[:AXES]
    step = (WIDTH - left - tail) / len(names)
    xs = [left + place * step for place in range(len(names) + 1)]
    scales: list[Scale] = [
        scale_of([_value(t, name) for t in sweep.trials if name in t.run.parameters], bottom, top)
        for name in names
    ]
    scales.append(Linear(*bounds(values), bottom, top))

    def height(trial: Trial, name: str, scale: Scale) -> float:
        return scale(_value(trial, name)) if name in trial.run.parameters else missing

    lines = _sample(sweep, sweep.trials, LINES)
    style = styles(sweep)
    marks: list[Markup] = []
    incomplete: set[float] = set()
    for trial in _worst_first(sweep, lines):
        ys = [height(trial, *axis) for axis in zip(names, scales[:-1], strict=True)]
        ys.append(scales[-1](trial.value) if trial.value is not None else missing)
        incomplete |= {x for x, y in zip(xs, ys, strict=True) if y == missing}
        line = zip(xs, ys, strict=True)
        kind = f"trial {style[trial.number]}"
        marks.append(svg.polyline(line, kind, tooltip(sweep, trial), trial.number))
    for place, (x, name, scale) in enumerate(zip(xs, [*names, sweep.metric], scales, strict=True)):
        marks += _axis(x, name, scale, place, step, place == len(names))
    marks += [svg.text("none", x + 6, missing + 3.5, "halo") for x in sorted(incomplete)]
    caption = [f"One line per trial, coloured by {sweep.metric}; point at a line to read it."]
    if first:
        caption.append("The most important parameters come first.")
    if len(lines) < len(sweep.trials):
        total = count(len(sweep.trials), "trial")
        caption.append(f"{len(lines):,} of {total} drawn: the best, and the others evenly.")
    if len(names) < len(every):
        caption.append(
            f"{len(names)} of {len(every)} parameters drawn; the table of trials has more."
        )
    legend = [style[trial.number] for trial in lines]
    return svg.figure("Parallel coordinates", WIDTH, 362.0, marks, " ".join(caption), legend)


def _axis(
    x: float, name: str, scale: Scale, place: int, step: float, is_last: bool
) -> list[Markup]:
    top, bottom, tail, letter = 58.0, 320.0, 60.0, 8.2
    # The names of neighbours stand at two heights, so that long ones do not overlap.
    y = 18 if place % 2 else 36
    width = tail + step if is_last else min(2 * step, 2 * x)
    parts = [
        svg.line(x, top, x, bottom, "axis"),
        svg.tag(
            "text",
            svg.tooltip(name),
            shorten(name, int(width / letter) - 1),
            x=WIDTH if is_last else x,
            y=y,
            text_anchor="end" if is_last else "middle",
            class_="label metric" if is_last else "label",
        ),
    ]
    if y == 18:
        parts.append(svg.line(x, 23, x, top - 4, "lead"))
    for at, tick in scale.ticks(5):
        parts += [svg.line(x - 3, at, x + 3, at, "axis"), svg.text(tick, x + 6, at + 3.5, "halo")]
    return parts


def learning(sweep: Sweep) -> Markup | None:
    """The primary metric of the trials over the steps; None when no trial logged it twice."""
    trials = [trial for trial in sweep.trials if len(_finite(trial.curve)) > 1]
    if not trials:
        return None
    bottom = 290.0
    lines = _sample(sweep, trials, CURVES)
    curves = {trial.number: _thin(_finite(_by_step(trial.curve))) for trial in lines}
    steps = [step for curve in curves.values() for step, _ in curve]
    low, high = bounds([value for curve in curves.values() for _, value in curve])
    x = Linear(min(steps), max(steps), LEFT, RIGHT, is_integer=True)
    y = Linear(low, high, bottom, TOP)
    marks = [
        svg.left_axis(y, LEFT, RIGHT, sweep.metric, TOP),
        svg.bottom_axis(x, bottom, "step", RIGHT),
    ]
    style = styles(sweep)
    for trial in _worst_first(sweep, lines):
        line = [(x(step), y(value)) for step, value in curves[trial.number]]
        kind, words = style[trial.number], tooltip(sweep, trial)
        marks.append(svg.polyline(line, f"trial {kind}", words, trial.number))
        if kind == "stopped":
            marks.append(_mark(kind, *line[-1], 4.0, words, trial.number))
    legend = [style[trial.number] for trial in lines]
    stopped = "; a triangle marks where a policy stopped it" if "stopped" in legend else ""
    caption = [f"One line per trial, coloured by its rank{stopped}."]
    if len(lines) < len(trials):
        caption.append(
            f"{len(lines)} of {len(trials):,} curves drawn: the best, and the others evenly."
        )
    if any(len(trial.curve) > CURVE_VALUES for trial in lines):
        caption.append(f"Long curves are thinned to {CURVE_VALUES} values.")
    return svg.figure("Learning curves", WIDTH, 340.0, marks, " ".join(caption), legend)


def single_curve(metric: str, curve: Curve) -> Markup | None:
    """One metric of one run; None when fewer than two of its values are finite."""
    finite = _finite(_by_step(curve))
    if len(finite) < 2:
        return None
    width, height, top = 480.0, 200.0, 12.0
    right, bottom = width - 15, height - 50
    thin = _thin(finite)
    x = Linear(thin[0][0], thin[-1][0], LEFT, right, is_integer=True)
    y = Linear(*bounds([value for _, value in thin]), bottom, top)
    line = [(x(step), y(value)) for step, value in thin]
    marks = [
        svg.left_axis(y, LEFT, right, "", top),
        svg.bottom_axis(x, bottom, "step", right),
        svg.polyline(line, "trial best", f"{metric}: last {number(curve[-1][1])}"),
    ]
    lost = len(curve) - len(finite)
    caption = f"{count(lost, 'value')} NaN or infinite, not drawn." if lost else ""
    return svg.figure(metric, width, height, marks, caption)


def styles(sweep: Sweep) -> Mapping[int, str]:
    """Trial number → class: best, q5 (best fifth) … q1 of the ranked, stopped, failed."""
    ranked = sweep.ranked
    style = {trial.number: f"q{5 - 5 * place // len(ranked)}" for place, trial in enumerate(ranked)}
    for trial in sweep.trials:
        if trial.number not in style:
            style[trial.number] = "stopped" if trial.outcome == "stopped" else "failed"
    if sweep.best:
        style[sweep.best.number] = "best"
    return style


def tooltip(sweep: Sweep, trial: Trial) -> str:
    """The trial in up to three lines: value and outcome, parameters, origin."""
    value = "no value" if trial.value is None else f"{short(sweep.metric)} {number(trial.value)}"
    parameters = ", ".join(
        f"{short(name)}={short(_value(trial, name))}"
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


def _mark(kind: str, x: float, y: float, radius: float, title: str, trial: int) -> Markup:
    """A cross for a failed trial, a triangle for a stopped one, else a circle."""
    words = svg.tooltip(title)
    if kind == "failed":
        cross = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0-8l-8 8"
        return svg.tag("path", words, d=cross, class_="mark failed", data_t=trial)
    if kind == "stopped":
        triangle = f"M{x - 5:.1f} {y - 4:.1f}h10l-5 8z"
        return svg.tag("path", words, d=triangle, class_="mark stopped", data_t=trial)
    colour = "mark best" if kind == "best" else "mark done"
    return svg.tag("circle", words, cx=x, cy=y, r=radius, class_=colour, data_t=trial)


def _best_so_far(sweep: Sweep) -> list[tuple[float, float]]:
    """The corners of the staircase of (trial number, best value of a completed trial so far)."""
    corners: list[tuple[float, float]] = []
    for trial in sweep.of("completed"):
        assert trial.value is not None
        if not corners or is_better(trial.value, corners[-1][1], sweep.goal):
            if corners:
                corners.append((trial.number, corners[-1][1]))
            corners.append((trial.number, trial.value))
    return corners


def _value(trial: Trial, name: str) -> object:
    return redact(name, trial.run.parameters[name])


def _sample(sweep: Sweep, trials: Sequence[Trial], most: int) -> list[Trial]:
    """At most `most` of the trials, in their order: the best fifth of them, the others evenly."""
    if len(trials) <= most:
        return list(trials)
    numbers = {trial.number for trial in trials}
    top = [trial.number for trial in sweep.ranked if trial.number in numbers][: most // 5]
    rest = [trial.number for trial in trials if trial.number not in set(top)]
    chosen = {*top, *svg.evenly(rest, most - len(top))}
    return [trial for trial in trials if trial.number in chosen]


def _worst_first(sweep: Sweep, trials: Sequence[Trial]) -> list[Trial]:
    """The drawing order: the unranked first, then from worst to best, which ends up on top."""
    rank = {trial.number: place for place, trial in enumerate(sweep.ranked)}
    return sorted(trials, key=lambda trial: -rank.get(trial.number, len(rank)))


def _by_step(curve: Curve) -> Curve:
    """The curve by its steps, or by the place of each value when the script named no step."""
    if len({step for step, _ in curve}) > 1:
        return tuple(sorted(curve, key=lambda point: point[0]))
    return tuple((place, value) for place, (_, value) in enumerate(curve, 1))


def _finite(curve: Curve) -> Curve:
    return tuple((step, value) for step, value in curve if math.isfinite(value))


def _thin(curve: Curve) -> Curve:
    return tuple(curve[place] for place in svg.evenly(range(len(curve)), CURVE_VALUES))


def pareto(selection: Selection) -> Markup | None:
    """Quality against the term that moves the score most; None when only quality was measured."""
    width, height, left, right, top, bottom = 600.0, 320.0, 60.0, 585.0, 34.0, 260.0
    term = _decisive_term(selection)
    trials = [trial for trial in selection.ranked if term and term not in trial.missing]
    if term is None or len(trials) < 2:
        return None
    x = Linear(*bounds([_term(trial, term) for trial in trials]), left, right)
    y = Linear(*bounds([_term(trial, "quality") for trial in trials]), bottom, top)
    marks = [
        svg.left_axis(y, left, right, selection.metric, top),
        svg.bottom_axis(x, bottom, TERMS[term], right),
    ]
    # The mark of a more important class is drawn later, and so on top.
    order = list(svg.LEGENDS)
    for trial in sorted(trials, key=lambda trial: order.index(_pareto_class(selection, trial))):
        kind = _pareto_class(selection, trial)
        circle = svg.tag(
            "circle",
            svg.tooltip(_pareto_tooltip(selection, trial)),
            cx=x(_term(trial, term)),
            cy=y(_term(trial, "quality")),
            r=7.0 if kind in ("score", "metric") else 4.5,
            class_=f"mark {kind}",
            data_t=trial.candidate.label.rpartition(" ")[2],
        )
        marks.append(circle)
    caption = (
        "A trial is on the Pareto front when no other trial is at least as good in every measured "
        f"term ({', '.join(_names(selection))}) and better in one."
    )
    legend = [_pareto_class(selection, trial) for trial in trials]
    return svg.figure("Pareto front", width, height, marks, caption, legend)


def _decisive_term(selection: Selection) -> str | None:
    """The term besides quality whose part in the score ranges most, else whose value does."""
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
    assert value is not None  # a missing term is in `missing`
    return value
