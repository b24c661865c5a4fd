"""When the parts of a run were worked on: a bar a part, a triangle for an eviction."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ml.reports.charts import frame
from ml.reports.charts.scales import Linear
from ml.reports.interruptions import Interrupted, Span
from ml.reports.markup import Html, tag
from ml.reports.numbers import duration, shorten

WIDTH, LEFT, RIGHT, ROW = 1090.0, 200.0, 1075.0, 26.0
LETTERS = 28
# Narrower bars would not be seen.
_LEAST = 2.0
# Room after a bar, so that what was begun anew is seen.
_BETWEEN = 1.5
# From so many seconds on the axis counts in the next unit.
_UNITS = ((2 * 3600, 3600.0, "hours"), (300, 60.0, "minutes"), (0, 1.0, "seconds"))


def timeline(parts: Sequence[Interrupted], took: float) -> Html:
    """The parts one under the other over `took` seconds, the whole time of the run."""
    unit, name = next((unit, name) for least, unit, name in _UNITS if took >= least)
    x = Linear(0.0, took / unit, LEFT, RIGHT)
    bottom = len(parts) * ROW + 6
    marks: list[object] = [frame.bottom_axis(x, bottom, f"{name} since the start", RIGHT)]
    for row, part in enumerate(parts):
        y = row * ROW

        def bar(span: Span, kind: str, what: str, y: float = y) -> Html:
            start, end = x(span[0] / unit), x(span[1] / unit)
            words = frame.title(f"{what} for {duration(span[1] - span[0])}")
            width = max(_LEAST, end - start - _BETWEEN)
            return tag(
                "rect", words, x=start, y=y + 8, width=width, height=ROW - 14, class_=f"bar {kind}"
            )

        marks.append(
            tag(
                "text",
                frame.title(part.part),
                shorten(part.part, LETTERS),
                x=LEFT - 8,
                y=y + 18,
                text_anchor="end",
            )
        )
        marks += [bar(span, "weak", "worked on in vain") for span in part.again]
        marks += [bar(span, "worked", "worked on") for span in part.worked]
        for at in part.evicted:
            down = f"M{x(at / unit) - 5:.1f} {y + 1:.1f}h10l-5 8z"
            words = frame.title(f"evicted {duration(at)} after the start")
            marks.append(tag("path", words, d=down, class_="mark stopped"))
    kinds = ["worked"]
    kinds += ["again"] if any(part.again for part in parts) else []
    kinds += ["evicted"] if any(part.evicted for part in parts) else []
    caption = "A gap is time in which it stood still." if _has_gap(parts) else None
    return frame.figure("When it was worked on", WIDTH, bottom + 40, marks, caption, kinds)


def _has_gap(parts: Sequence[Interrupted]) -> bool:
    spans = [sorted((*part.worked, *part.again)) for part in parts]
    return any(later[0] > earlier[1] for one in spans for earlier, later in pairwise(one))
