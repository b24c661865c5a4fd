"""The sweep as it went: every trial by its outcome, and the best so far."""

from __future__ import annotations

from ml.reports.charts import frame
from ml.reports.charts.scales import Linear, bounds
from ml.reports.charts.trials import styles, words
from ml.reports.markup import Html, join, tag
from ml.reports.numbers import count
from ml.reports.sweeps import Sweep
from ml.sweeps.objective import is_better

WIDTH, HEIGHT = 1090.0, 320.0
LEFT, RIGHT, TOP, BOTTOM = 60.0, 1075.0, 34.0, 250.0
# The strip under the chart for trials that have no value.
STRIP = 268.0
# Beyond as many trials dots are smaller, and their parameters do not fill the page.
WORDY = 200


def history(sweep: Sweep) -> Html | None:
    """None when no trial has a value."""
    values = [trial.value for trial in sweep.trials if trial.value is not None]
    if not values:
        return None
    low, high = bounds(values)
    y = Linear(low, high, BOTTOM, TOP)
    x = Linear(-0.5, max(len(sweep.trials) - 0.5, 0.5), LEFT, RIGHT)
    marks: list[object] = [
        frame.left_axis(y, LEFT, RIGHT, sweep.metric, TOP),
        _numbers(len(sweep.trials), x),
    ]
    style = styles(sweep)
    line: list[tuple[float, float]] = []
    best: float | None = None
    beyond = 0
    for trial in sweep.trials:
        at = x(trial.number)
        value = trial.value if trial.outcome == "completed" else None
        if value is not None and (best is None or is_better(value, best, sweep.goal)):
            if best is not None:
                line.append((at, y(best)))
            best = value
            line.append((at, y(best)))
        beyond += trial.value is not None and not low <= trial.value <= high
    if best is not None:
        line.append((RIGHT, y(best)))
        marks.append(tag("polyline", points=frame.points(line), class_="line"))
    wordy = len(sweep.trials) <= WORDY
    size = 4.0 if wordy else 2.5
    for trial in sweep.trials:
        said = words(sweep, trial) if wordy else words(sweep, trial).partition("\n")[0]
        kind = style[trial.number]
        shape = "failed" if trial.value is None or kind == "failed" else kind
        at = y(trial.value) if trial.value is not None else STRIP
        marks.append(_mark(shape, x(trial.number), at, trial.number, said, size))
    empty = sum(trial.value is None for trial in sweep.trials)
    if empty:
        marks.append(tag("text", "no value", x=LEFT - 6, y=STRIP + 3.5, text_anchor="end"))
    notes = [f"{count(beyond, 'trial')} far outside drawn at the edge."] if beyond else []
    return frame.figure(
        "History",
        WIDTH,
        HEIGHT,
        marks,
        " ".join(["Trials in the order in which they started.", *notes]),
        [
            kind
            for kind, there in (
                ("line", best is not None),
                ("best", sweep.best is not None),
                ("done", bool(sweep.of("completed"))),
                ("stopped", bool(sweep.of("stopped"))),
                ("failed", bool(sweep.of("failed", "unranked", "canceled", "running"))),
            )
            if there
        ],
    )


def _mark(kind: str, x: float, y: float, number: int, said: str, size: float) -> Html:
    told = frame.title(said)
    if kind == "failed":
        cross = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0-8l-8 8"
        return tag("path", told, d=cross, class_="mark failed", data_t=number)
    if kind == "stopped":
        down = f"M{x - 5:.1f} {y - 4:.1f}h10l-5 8z"
        return tag("path", told, d=down, class_="mark stopped", data_t=number)
    radius = 6.0 if kind == "best" else size
    shape = "best" if kind == "best" else "done"
    return tag("circle", told, cx=x, cy=y, r=radius, class_=f"mark {shape}", data_t=number)


def _numbers(trials: int, x: Linear) -> Html:
    whole = [tag("text", "trial", x=RIGHT, y=STRIP + 44, text_anchor="end", class_="label")]
    for at, number in Linear(0, trials - 1, x(0), x(trials - 1), whole=True).ticks(12):
        whole.append(tag("text", number, x=at, y=STRIP + 26, text_anchor="middle"))
    return join(whole)
