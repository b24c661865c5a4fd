"""Parallel coordinates: a line a trial, through its parameters to its value."""

from __future__ import annotations

from collections.abc import Sequence

from ml.reports.charts import frame
from ml.reports.charts.scales import Linear, Scale, bounds, scale_of
from ml.reports.charts.trials import drawn_in_order, sample, styles, words
from ml.reports.markup import Html, join, tag
from ml.reports.numbers import count, shorten
from ml.reports.privacy import shown
from ml.reports.sweeps import Sweep, Trial

TOP, BOTTOM, MISSING, HEIGHT = 58.0, 320.0, 350.0, 362.0
WIDTH, LEFT, TAIL = 1090.0, 70.0, 60.0
# More axes and lines than these nobody can tell apart.
AXES = 12
LINES = 300
# The width of a letter of an axis's name.
LETTER = 8.2


def parallel(sweep: Sweep, first: Sequence[str] = ()) -> Html | None:
    """None without a parameter that differs, a second trial, or one with a value.

    `first` are parameters by their importance: they come first, and are kept when there are more
    than AXES.
    """
    values = [trial.value for trial in sweep.trials if trial.value is not None]
    names = [*first, *(name for name in sweep.varied if name not in first)]
    if not values or not names or len(sweep.trials) < 2:
        return None
    kept = names[:AXES]
    step = (WIDTH - LEFT - TAIL) / len(kept)
    xs = [LEFT + at * step for at in range(len(kept) + 1)]
    scales: list[Scale] = [
        scale_of(
            [shown(name, t.run.parameters[name]) for t in sweep.trials if name in t.run.parameters],
            BOTTOM,
            TOP,
        )
        for name in kept
    ]
    low, high = bounds(values)
    value = Linear(low, high, BOTTOM, TOP)
    lines = sample(sweep, sweep.trials, LINES)
    style = styles(sweep)
    marks: list[object] = []
    incomplete: set[float] = set()
    for trial in drawn_in_order(sweep, lines):
        places = [_place(trial, name, scale) for name, scale in zip(kept, scales, strict=True)]
        places.append(value(trial.value) if trial.value is not None else MISSING)
        incomplete |= {x for x, y in zip(xs, places, strict=True) if y == MISSING}
        marks.append(
            tag(
                "polyline",
                frame.title(words(sweep, trial)),
                points=frame.points(zip(xs, places, strict=True)),
                class_=f"trial {style[trial.number]}",
                data_t=trial.number,
            )
        )
    axes = zip(xs, [*kept, sweep.metric], [*scales, value], strict=True)
    marks += [
        _axis(x, name, scale, at, step, at == len(kept)) for at, (x, name, scale) in enumerate(axes)
    ]
    marks += [
        tag("text", "none", x=x + 6, y=MISSING + 3.5, class_="halo") for x in sorted(incomplete)
    ]
    return frame.figure(
        "Parallel coordinates",
        WIDTH,
        HEIGHT,
        marks,
        _caption(sweep, len(lines), len(kept), len(names), bool(first)),
        frame.present(style[trial.number] for trial in lines),
    )


def _place(trial: Trial, name: str, scale: Scale) -> float:
    if name not in trial.run.parameters:
        return MISSING
    return scale(shown(name, trial.run.parameters[name]))


def _axis(x: float, name: str, scale: Scale, at: int, step: float, is_last: bool) -> Html:
    # Neighbours' names stand at two heights, so that long ones do not run into each other.
    y = 18 if at % 2 else 36
    width = TAIL + step if is_last else min(2 * step, 2 * x)
    said = shorten(name, int(width / LETTER) - 1)
    parts = [
        tag("line", x1=x, x2=x, y1=TOP, y2=BOTTOM, class_="axis"),
        tag(
            "text",
            frame.title(name),
            said,
            x=WIDTH if is_last else x,
            y=y,
            text_anchor="end" if is_last else "middle",
            class_="label metric" if is_last else "label",
        ),
    ]
    if y == 18:
        parts.append(tag("line", x1=x, x2=x, y1=23, y2=TOP - 4, class_="lead"))
    for place, said in scale.ticks(5):
        parts.append(tag("line", x1=x - 3, x2=x + 3, y1=place, y2=place, class_="axis"))
        parts.append(tag("text", said, x=x + 6, y=place + 3.5, class_="halo"))
    return join(parts)


def _caption(sweep: Sweep, lines: int, kept: int, names: int, by_importance: bool) -> str:
    said = [f"A line a trial, coloured by {sweep.metric}; rest the pointer on one to read it."]
    if by_importance:
        said.append("The most important parameters come first.")
    if lines < len(sweep.trials):
        said.append(
            f"{lines:,} of {count(len(sweep.trials), 'trial')} drawn: the best, the others evenly."
        )
    if kept < names:
        said.append(f"{kept} of {names} parameters drawn; the table of trials has more.")
    return " ".join(said)
