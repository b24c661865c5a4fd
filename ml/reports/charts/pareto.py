"""Quality against what it costs: every ranked trial, the front, and the two that are first."""

from __future__ import annotations

from collections.abc import Sequence

from ml.release.selection.selection import Ranked, Selection
from ml.reports.charts import frame
from ml.reports.charts.scales import Linear, bounds
from ml.reports.markup import Html, tag
from ml.reports.numbers import number

WIDTH, HEIGHT = 600.0, 320.0
LEFT, RIGHT, TOP, BOTTOM = 60.0, 585.0, 34.0, 260.0
AXES = {
    "latency": "latency of a prediction, ms",
    "cost": "cost, seconds of a node",
    "stability": "spread over seeds",
}


def pareto(made: Selection) -> Html | None:
    """Against the term that moves the score most; None when quality alone was measured."""
    term = _telling(made)
    drawn = [one for one in made.ranked if term and term not in one.missing]
    if term is None or len(drawn) < 2:
        return None
    across, up = [_of(one, term) for one in drawn], [_of(one, "quality") for one in drawn]
    x, y = Linear(*bounds(across), LEFT, RIGHT), Linear(*bounds(up), BOTTOM, TOP)
    marks: list[object] = [
        frame.left_axis(y, LEFT, RIGHT, made.metric, TOP),
        frame.bottom_axis(x, BOTTOM, AXES[term], RIGHT),
    ]
    kinds = {one.contender.name: _kind(made, one) for one in drawn}
    for one in sorted(drawn, key=lambda one: list(frame.LEGENDS).index(kinds[one.contender.name])):
        kind = kinds[one.contender.name]
        large = kind in ("score", "metric")
        marks.append(
            tag(
                "circle",
                frame.title(_words(made, one)),
                cx=x(_of(one, term)),
                cy=y(_of(one, "quality")),
                r=7.0 if large else 4.5,
                class_=f"mark {kind}",
                data_t=one.contender.label.rpartition(" ")[2],
            )
        )
    return frame.figure(
        "Quality against what it costs",
        WIDTH,
        HEIGHT,
        marks,
        "On the Pareto front no other trial is at least as good in everything that was measured "
        f"({', '.join(_names(made))}) and better in something.",
        frame.present(kinds.values()),
    )


def _telling(made: Selection) -> str | None:
    """The term besides quality whose part in the score, else whose value, ranges most."""
    terms = [term for term in AXES if term in made.compared]

    def ranges(term: str) -> tuple[float, float]:
        having = [one for one in made.ranked if term not in one.missing]
        parts = [one.parts[term] for one in having]
        values = [_of(one, term) for one in having]
        largest = max(map(abs, values)) or 1.0
        return max(parts) - min(parts), (max(values) - min(values)) / largest

    return max(terms, key=ranges, default=None)


def _kind(made: Selection, one: Ranked) -> str:
    if made.by_score is one:
        return "score"
    if made.by_metric is one:
        return "metric"
    return "front" if one.on_front else "beaten"


def _words(made: Selection, one: Ranked) -> str:
    score = "no score" if one.score is None else f"score {one.score:.2f}"
    measured = ", ".join(
        f"{name} {number(_of(one, term))}"
        for term, name in zip(made.compared, _names(made), strict=True)
        if term not in one.missing
    )
    return f"{one.contender.label}: {score}, {one.by_metric}. by {made.metric}\n{measured}"


def _names(made: Selection) -> Sequence[str]:
    return ["spread" if term == "stability" else term for term in made.compared]


def _of(one: Ranked, term: str) -> float:
    value = one.contender.terms[term]
    assert value is not None  # a missing term is in `missing`
    return value
