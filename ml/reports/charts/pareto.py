"""The Pareto front of a selection: quality against latency, cost or stability."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from ml.release.selection.selection import Ranked, Selection
from ml.reports.charts import svg
from ml.reports.charts.scales import Linear, bounds
from ml.reports.formatting import number

AXES = {
    "latency": "latency of a prediction, ms",
    "cost": "cost, seconds of a node",
    "stability": "spread over seeds",
}


def pareto(selection: Selection) -> Markup | None:
    """Quality against the term that moves the score most; None when only quality was measured."""
    width, height, left, right, top, bottom = 600.0, 320.0, 60.0, 585.0, 34.0, 260.0
    term = _decisive_term(selection)
    trials = [trial for trial in selection.ranked if term and term not in trial.missing]
    if term is None or len(trials) < 2:
        return None
    x = Linear(*bounds([_value(trial, term) for trial in trials]), left, right)
    y = Linear(*bounds([_value(trial, "quality") for trial in trials]), bottom, top)
    marks = [
        svg.left_axis(y, left, right, selection.metric, top),
        svg.bottom_axis(x, bottom, AXES[term], right),
    ]
    # The mark of a more important class is drawn later, and so on top.
    order = list(svg.LEGENDS)
    for trial in sorted(trials, key=lambda trial: order.index(_class(selection, trial))):
        kind = _class(selection, trial)
        circle = svg.tag(
            "circle",
            svg.tooltip(_words(selection, trial)),
            cx=x(_value(trial, term)),
            cy=y(_value(trial, "quality")),
            r=7.0 if kind in ("score", "metric") else 4.5,
            class_=f"mark {kind}",
            data_t=trial.candidate.label.rpartition(" ")[2],
        )
        marks.append(circle)
    caption = (
        "A trial is on the Pareto front when no other trial is at least as good in every measured "
        f"term ({', '.join(_names(selection))}) and better in one."
    )
    legend = [_class(selection, trial) for trial in trials]
    return svg.figure("Pareto front", width, height, marks, caption, legend)


def _decisive_term(selection: Selection) -> str | None:
    """The term besides quality whose part in the score ranges most, else whose value does."""
    terms = [term for term in AXES if term in selection.compared]

    def ranges(term: str) -> tuple[float, float]:
        trials = [trial for trial in selection.ranked if term not in trial.missing]
        parts = [trial.parts[term] for trial in trials]
        values = [_value(trial, term) for trial in trials]
        largest = max(map(abs, values)) or 1.0
        return max(parts) - min(parts), (max(values) - min(values)) / largest

    return max(terms, key=ranges, default=None)


def _class(selection: Selection, trial: Ranked) -> str:
    if selection.by_score is trial:
        return "score"
    if selection.by_metric is trial:
        return "metric"
    return "front" if trial.on_front else "beaten"


def _words(selection: Selection, trial: Ranked) -> str:
    score = "no score" if trial.score is None else f"score {trial.score:.2f}"
    values = ", ".join(
        f"{name} {number(_value(trial, term))}"
        for term, name in zip(selection.compared, _names(selection), strict=True)
        if term not in trial.missing
    )
    rank = f"{trial.by_metric}. by {selection.metric}"
    return f"{trial.candidate.label}: {score}, {rank}\n{values}"


def _names(selection: Selection) -> Sequence[str]:
    return ["spread" if term == "stability" else term for term in selection.compared]


def _value(trial: Ranked, term: str) -> float:
    value = trial.candidate.terms[term]
    assert value is not None  # a missing term is in `missing`
    return value
