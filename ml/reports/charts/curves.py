"""Learning curves: what was logged of a metric, over the steps."""

from __future__ import annotations

import math

from ml.reports.charts import frame
from ml.reports.charts.scales import Linear, bounds
from ml.reports.charts.trials import drawn_in_order, sample, styles, words
from ml.reports.markup import Html, tag
from ml.reports.numbers import count, number
from ml.reports.recorded import Curve
from ml.reports.sweeps import Sweep

WIDTH, HEIGHT = 1090.0, 340.0
LEFT, RIGHT, TOP, BOTTOM = 60.0, 1075.0, 34.0, 290.0
# Curves of one chart, and values of one curve, that are drawn.
CURVES = 60
VALUES = 100
# Small charts of a command job, one a metric.
SMALL_WIDTH, SMALL_HEIGHT, SMALL_TOP, SMALL = 480.0, 200.0, 12.0, 12


def learning(sweep: Sweep) -> Html | None:
    """The primary metric of the trials; None when no trial logged it twice."""
    with_curves = [trial for trial in sweep.trials if len(_finite(trial.curve)) > 1]
    if not with_curves:
        return None
    lines = sample(sweep, with_curves, CURVES)
    curves = {trial.number: _thin(_finite(_stepped(trial.curve))) for trial in lines}
    steps = [step for curve in curves.values() for step, _ in curve]
    low, high = bounds([value for curve in curves.values() for _, value in curve])
    x, y = Linear(min(steps), max(steps), LEFT, RIGHT, whole=True), Linear(low, high, BOTTOM, TOP)
    marks: list[object] = [
        frame.left_axis(y, LEFT, RIGHT, sweep.metric, TOP),
        frame.bottom_axis(x, BOTTOM, "step", RIGHT),
    ]
    style = styles(sweep)
    for trial in drawn_in_order(sweep, lines):
        line = [(x(step), y(value)) for step, value in curves[trial.number]]
        kind = style[trial.number]
        told = frame.title(words(sweep, trial))
        drawn = frame.points(line)
        marks.append(
            tag("polyline", told, points=drawn, class_=f"trial {kind}", data_t=trial.number)
        )
        if kind == "stopped":
            end_x, end_y = line[-1]
            down = f"M{end_x - 5:.1f} {end_y - 4:.1f}h10l-5 8z"
            marks.append(tag("path", told, d=down, class_="mark stopped", data_t=trial.number))
    stopped = any(style[trial.number] == "stopped" for trial in lines)
    triangle = "; a triangle is where a policy stopped it" if stopped else ""
    said = [f"A line a trial, coloured by its rank{triangle}."]
    if len(lines) < len(with_curves):
        said.append(
            f"{len(lines)} of {len(with_curves):,} curves drawn: the best, the others evenly."
        )
    if any(len(trial.curve) > VALUES for trial in lines):
        said.append(f"Long curves are thinned to {VALUES} values.")
    return frame.figure(
        "Learning curves",
        WIDTH,
        HEIGHT,
        marks,
        " ".join(said),
        frame.present(style[trial.number] for trial in lines),
    )


def single(metric: str, curve: Curve) -> Html | None:
    """One metric of one run; None when fewer than two of its values are finite."""
    finite = _finite(_stepped(curve))
    if len(finite) < 2:
        return None
    line = _thin(finite)
    low, high = bounds([value for _, value in line])
    right, bottom = SMALL_WIDTH - 15, SMALL_HEIGHT - 50
    x = Linear(line[0][0], line[-1][0], LEFT, right, whole=True)
    y = Linear(low, high, bottom, SMALL_TOP)
    drawn = frame.points((x(step), y(value)) for step, value in line)
    lost = len(curve) - len(finite)
    said = f"{count(lost, 'value')} NaN or infinite, not drawn." if lost else None
    marks = [
        frame.left_axis(y, LEFT, right, "", SMALL_TOP),
        frame.bottom_axis(x, bottom, "step", right),
        tag(
            "polyline",
            frame.title(f"{metric}: last {number(curve[-1][1])}"),
            points=drawn,
            class_="trial best",
        ),
    ]
    return frame.figure(metric, SMALL_WIDTH, SMALL_HEIGHT, marks, said)


def _stepped(curve: Curve) -> Curve:
    """The curve by its steps, or by the place of each value when the script named none."""
    if len({step for step, _ in curve}) > 1:
        return tuple(sorted(curve, key=lambda at: at[0]))
    return tuple((place, value) for place, (_, value) in enumerate(curve, 1))


def _finite(curve: Curve) -> Curve:
    return tuple((step, value) for step, value in curve if math.isfinite(value))


def _thin(curve: Curve) -> Curve:
    return tuple(curve[place] for place in frame.evenly(range(len(curve)), VALUES))
