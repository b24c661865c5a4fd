"""Charts of a run, for its report: what is taken for what, and which sections decide."""

from __future__ import annotations

import csv
import json
from collections import Counter

import altair as alt

from ml.toolkit.figures import RunFiles


def confusion(run: RunFiles) -> alt.LayerChart | None:
    """Of the filings that each event followed, the share of each prediction, on the test."""
    if run.predictions is None:
        return None
    with run.predictions.open(encoding="utf-8", newline="") as file:
        pairs = Counter(
            (row["expected"], row["predicted"])
            for row in csv.DictReader(file)
            if row["split"] == "test"
        )
    followed = Counter[str]()
    for (expected, _), count in pairs.items():
        followed[expected] += count
    cells = [
        {"followed": of, "predicted": as_, "share": count / followed[of], "filings": count}
        for (of, as_), count in pairs.items()
    ]
    base = alt.Chart(alt.Data(values=cells)).encode(
        alt.X("predicted:N", axis=alt.Axis(labelAngle=0)), alt.Y("followed:N")
    )
    squares = base.mark_rect().encode(alt.Color("share:Q", legend=None))
    return squares + base.mark_text().encode(alt.Text("filings:Q"))


def sections(run: RunFiles) -> alt.Chart | None:
    """The share of each section in what the model says (Shapley values)."""
    folder = run.outputs.get("evaluation")
    if folder is None or not (folder / "evaluation.json").is_file():
        return None
    evaluation = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    bars = [{"section": of["feature"], "share": of["share"]} for of in evaluation["contributions"]]
    return (
        alt.Chart(alt.Data(values=bars))
        .mark_bar()
        .encode(
            alt.X("share:Q", axis=alt.Axis(format="%")), alt.Y("section:N", sort="-x", title=None)
        )
    )


CHARTS = {"What is taken for what": confusion, "Which sections decide": sections}
