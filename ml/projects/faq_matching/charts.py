"""Charts for a run's report: the rank of the right entry."""

from __future__ import annotations

import csv
from collections import Counter

import altair as alt

from ml.toolkit.figures import RunFiles

# The last rank on the chart.
LAST = 10


def ranks(run: RunFiles) -> alt.Chart | None:
    """Return a chart of the share of questions whose right entry ranks at most k, by split.

    Returns None if the run has no predictions.
    """
    if run.predictions is None:
        return None
    with run.predictions.open(encoding="utf-8", newline="") as file:
        rows = [(row["split"], int(row["rank"])) for row in csv.DictReader(file)]
    questions, right = Counter(split for split, _ in rows), Counter(rows)
    shares = [
        {
            "split": split,
            "rank": rank,
            "share": sum(right[split, before] for before in range(1, rank + 1)) / questions[split],
        }
        for split in questions
        for rank in range(1, LAST + 1)
    ]
    points = alt.Chart(alt.Data(values=shares)).mark_line(point=True)
    return points.encode(
        alt.X("rank:O", title="rank", axis=alt.Axis(labelAngle=0)),
        alt.Y("share:Q", title="questions answered", axis=alt.Axis(format="%")),
        alt.Color("split:N"),
    )


CHARTS = {"Questions answered by rank": ranks}
