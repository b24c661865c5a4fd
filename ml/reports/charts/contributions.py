"""Chart SHAP values: of all explained rows, by the values of a feature, and of single rows."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from ml.measures.contributions import ExplainedRows
from ml.reports.charts import svg
from ml.reports.charts.scales import axis, short_names
from ml.reports.formatting import number, shorten, signed

# Maximum features in the summary, with a dependence chart, and in the chart of one row.
FEATURES, DEPENDENCES, OF_ROW = 12, 4, 8
# Maximum rows drawn as dots, and maximum categories on an axis.
ROWS, CATEGORIES = 150, 12
_LEVELS = ("q1", "q2", "q3", "q4", "q5")
_VALUES = {
    "q1": ("q1", "lowest fifth of its values"),
    "q3": ("q3", "middle"),
    "q5": ("q5", "highest fifth"),
    "stopped": ("stopped", "a category, or missing"),
}
_SIGNS = {"more": ("best", "raises the score"), "less": ("accent", "lowers it")}


def contribution_charts(rows: ExplainedRows) -> list[Markup]:
    """Return the summary chart, the dependence charts of the first features, and three rows'.

    The rows are those with the highest, the median and the lowest score. [] without rows.
    """
    if not len(rows.ids) or not len(rows.names):
        return []
    dependences = [
        dependence(rows, feature) for feature in range(min(DEPENDENCES, len(rows.names)))
    ]
    total = rows.added.sum(axis=1)
    order = np.argsort(total, kind="stable")
    places = dict.fromkeys([int(order[-1]), int(order[len(order) // 2]), int(order[0])])
    words = ("highest", "median", "lowest")
    singles = [row(rows, index, word) for index, word in zip(places, words, strict=False)]
    return [summary(rows), *dependences, *singles]


def summary(rows: ExplainedRows) -> Markup:
    """Plot one dot per row for each feature: dots right of zero raise the score."""
    sample = svg.evenly(range(len(rows.ids)), ROWS)
    names = short_names(rows.names[:FEATURES], 18)
    dots, kinds = [], set()
    for place, name in enumerate(names):
        values, added = rows.values[sample, place], rows.added[sample, place]
        levels = _levels(values, rows.names[place] in rows.categories)
        kinds |= {*levels}
        for index, (value, effect, level, up) in enumerate(
            zip(values, added, levels, _vertical_offsets(added), strict=True)
        ):
            row_id = rows.ids[sample[index]]
            words = f"{name} {_shown(rows, place, value)}: {signed(float(effect))} ({row_id})"
            dots.append(
                {"x": float(effect), "y": place + up, "colour": f"var(--{level})", "words": words}
            )
    low, high = _range(rows.added[sample, : len(names)])
    x = alt.X("x:Q", title="SHAP value", **axis(low, high))
    upright = alt.Scale(domain=[len(names) - 0.5, -0.5], nice=False, zero=False)
    y = alt.Y("y:Q", axis=None, scale=upright)
    drawn = (
        svg.rows(dots)
        .mark_point(size=14, opacity=0.8)
        .encode(x, y, alt.Color("colour:N", scale=None, legend=None))
    )
    texts = svg.rows({"y": place, "name": name} for place, name in enumerate(names))
    labels = texts.mark_text(align="right", dx=-8, color="var(--ink)").encode(
        y, text="name:N", x=alt.value(0)
    )
    zero = svg.rows([{"x": 0}]).mark_rule(color="var(--baseline)").encode(x)
    caption = (
        f"A dot is one of {len(sample)} test rows. The feature raised the score of rows right of "
        "the line and lowered it left of the line."
    )
    meanings = {kind: meaning for kind, meaning in _VALUES.items() if kind in kinds}
    return svg.figure(
        "SHAP values",
        alt.layer(zero, svg.pointed(drawn), labels),
        450,
        24 * len(names) + 60,
        caption,
        meanings,
    )


def dependence(rows: ExplainedRows, place: int) -> Markup:
    """Plot the SHAP values of the feature with index `place` over its values, one dot per row."""
    name = rows.names[place]
    sample = svg.evenly(range(len(rows.ids)), ROWS)
    values, added = rows.values[sample, place], rows.added[sample, place]
    low, high = _range(added)
    y = alt.Y("y:Q", title="SHAP value", **axis(low, high))
    labels = [_shown(rows, place, value) for value in values]
    words = [
        f"{name} {cell}: {signed(float(more))}" for cell, more in zip(labels, added, strict=True)
    ]
    caption = ""
    if name in rows.categories:
        # The most frequent categories, ordered by their mean SHAP value.
        every, counts = np.unique(labels, return_counts=True)
        common = [str(cell) for cell in every[np.argsort(-counts, kind="stable")][:CATEGORIES]]
        means = {cell: float(added[np.array(labels) == cell].mean()) for cell in common}
        order = sorted(common, key=means.__getitem__)
        short = dict(zip(order, short_names(order, 12), strict=True))
        x = alt.X(
            "x:N", title=shorten(name, 40), sort=[*short.values()], axis=alt.Axis(labelAngle=-35)
        )
        dots = [
            {"x": short[cell], "y": float(more), "words": text}
            for cell, more, text in zip(labels, added, words, strict=True)
            if cell in short
        ]
        if len(every) > len(common):
            caption = f"The {len(common)} most frequent of {len(every)} categories."
    else:
        is_finite = np.isfinite(values)
        first, last = _range(values[is_finite], has_zero=False)
        x = alt.X("x:Q", title=shorten(name, 40), **axis(first, last))
        dots = [
            {"x": float(value), "y": float(more), "words": text}
            for value, more, text in zip(
                values[is_finite], added[is_finite], np.array(words)[is_finite], strict=True
            )
        ]
        if missing := int((~is_finite).sum()):
            caption = f"{missing} rows without a value are omitted."
    marks = svg.rows(dots).mark_point(size=18, color="var(--q4)", opacity=0.8)
    zero = svg.rows([{"y": 0}]).mark_rule(color="var(--baseline)").encode(y)
    chart = alt.layer(zero, svg.pointed(marks.encode(x, y)))
    return svg.figure(f"SHAP dependence: {shorten(name, 40)}", chart, 450, 320, caption)


def row(rows: ExplainedRows, index: int, word: str) -> Markup:
    """Plot the `OF_ROW` largest SHAP values of a row; `word` ranks its score, such as `highest`."""
    added = rows.added[index]
    places = np.argsort(-np.abs(added), kind="stable")[:OF_ROW]
    bars = [
        {
            "place": number_,
            "name": shorten(
                f"{rows.names[place]} = {_shown(rows, place, rows.values[index, place])}", 24
            ),
            "x": float(added[place]),
            "text": signed(float(added[place])),
            "colour": f"var(--{_SIGNS['more' if added[place] > 0 else 'less'][0]})",
            "words": f"{rows.names[place]}: {signed(float(added[place]))}",
        }
        for number_, place in enumerate(places)
    ]
    reach = float(np.abs(added[places]).max()) or 1.0
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[-1.35 * reach, 1.35 * reach], nice=False))
    y = alt.Y("place:O", axis=None)
    data = svg.rows(bars)
    drawn = data.mark_bar(height=12).encode(
        x, y, alt.Color("colour:N", scale=None, legend=None), x2=alt.datum(0)
    )
    names = data.mark_text(align="right", dx=-8, color="var(--ink)", fontSize=10).encode(
        y, text="name:N", x=alt.value(0)
    )
    ends = alt.layer(
        data.transform_filter("datum.x >= 0")
        .mark_text(align="left", dx=4)
        .encode(x, y, text="text:N"),
        data.transform_filter("datum.x < 0")
        .mark_text(align="right", dx=-4)
        .encode(x, y, text="text:N"),
    )
    zero = svg.rows([{"x": 0}]).mark_rule(color="var(--baseline)").encode(x)
    remainder = float(added.sum() - added[places].sum())
    caption = f"Sum of all SHAP values: {number(float(added.sum()))}"
    caption += f", {number(remainder)} of it from the other features." if remainder else "."
    return svg.figure(
        f"The row with the {word} score: {shorten(rows.ids[index], 24)}",
        alt.layer(zero, svg.pointed(drawn), names, ends),
        450,
        24 * len(bars) + 20,
        caption,
        _SIGNS,
    )


def _range(values: NDArray[np.float64], has_zero: bool = True) -> tuple[float, float]:
    """Return the axis range of all values, including outliers; `has_zero` adds zero."""
    every = np.append(values, 0.0) if has_zero or not len(values) else values
    low, high = float(every.min()), float(every.max())
    margin = 0.03 * (high - low) or 1.0
    return low - margin, high + margin


def _levels(values: NDArray[np.float64], is_category: bool) -> list[str]:
    """Return each value's colour: q1 to q5 by quintile, `stopped` for categories and missing."""
    is_finite = np.isfinite(values)
    if is_category or not is_finite.any():
        return ["stopped"] * len(values)
    ordered = np.sort(values[is_finite])
    # Tied values get their mean rank, so that two equally frequent values differ in colour.
    below = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    fifth = np.minimum((5 * below / (2 * len(ordered))).astype(int), 4)
    return [_LEVELS[index] if ok else "stopped" for index, ok in zip(fifth, is_finite, strict=True)]


def _vertical_offsets(added: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return vertical offsets that keep dots with nearly the same SHAP value from overlapping."""
    low, high = float(added.min()), float(added.max())
    of_bin = np.round((added - low) / ((high - low) or 1.0) * 60).astype(int)
    up = np.zeros(len(added))
    for place in np.unique(of_bin):
        rows = np.flatnonzero(of_bin == place)
        steps = (np.arange(len(rows)) + 1) // 2 * np.where(np.arange(len(rows)) % 2, 1, -1)
        up[rows] = steps * min(0.06, 0.8 / max(1, len(rows)))
    return up


def _shown(rows: ExplainedRows, place: int, value: float) -> str:
    """Return a feature's value as text: the category, the number, or "missing"."""
    if not np.isfinite(value):
        return "missing"
    names: Sequence[str] = rows.categories.get(rows.names[place], ())
    return names[int(value)] if 0 <= int(value) < len(names) else number(float(value))
