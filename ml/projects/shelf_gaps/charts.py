"""Charts for the evaluation's report: boxes drawn over images, and precision-recall curves."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from ml.measures.detection import CERTAIN, OVERLAPS, matches, read
from ml.projects.shelf_gaps.images import decoded
from ml.toolkit.figures import RunFiles

Row = Mapping[str, str]
# IoU thresholds of the curves.
DRAWN = (0.5, 0.75, 0.9)
# Colours: true gaps green, predicted boxes with a high score red, others orange.
_OBJECT, _CERTAIN, _OTHER = "#2ca02c", "#d62728", "#ff9f1c"
_LEAST_SCORE = 0.2


def curves(run: RunFiles) -> alt.Chart | None:
    """Return the precision-recall curves of the test split by IoU threshold, or None."""
    rows = _rows(run)
    if not rows:
        return None
    matched = matches([row["expected"] for row in rows], [row["predicted"] for row in rows])
    points = []
    for overlap in DRAWN:
        right = matched.right[OVERLAPS.index(overlap)]
        hits, boxes = right.cumsum(), np.arange(1, len(right) + 1)
        for i in np.unique(np.linspace(0, len(right) - 1, 150).astype(int)) if len(right) else ():
            recall, precision = hits[i] / max(matched.objects.sum(), 1), hits[i] / boxes[i]
            points.append(
                {"overlap": str(overlap), "recall": float(recall), "precision": float(precision)}
            )
    lines = alt.Chart(alt.Data(values=points)).mark_line()
    return lines.encode(
        alt.X("recall:Q", scale=alt.Scale(domain=[0, 1])),
        alt.Y("precision:Q", scale=alt.Scale(domain=[0, 1])),
        alt.Color("overlap:N", title="overlap from"),
        alt.Order("recall:Q"),
    )


def best(run: RunFiles) -> Any:
    """Draw the images with the smallest error of the predicted number of gaps."""
    return _chosen(run, "best")


def worst(run: RunFiles) -> Any:
    """Draw the images with the largest error of the predicted number of gaps."""
    return _chosen(run, "worst")


def stores(run: RunFiles) -> Any:
    """Draw up to two images of each store."""
    rows = _kept(run)
    names = sorted({row["slice:store"] for row in rows})
    of_store = {name: [row for row in rows if row["slice:store"] == name][:2] for name in names}
    return _drawn(run, [row for rows in of_store.values() for row in rows])


def _rows(run: RunFiles) -> list[Row]:
    """Return the rows of predictions.csv of the test split; [] without predictions."""
    if run.predictions is None:
        return []
    with run.predictions.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["split"] == "test"]


def _folder(run: RunFiles) -> Path | None:
    folder = run.predictions.parent / "looked_at" if run.predictions else None
    return folder if folder is not None and folder.is_dir() else None


def _kept(run: RunFiles) -> list[Row]:
    """Return the test rows whose images the evaluation kept."""
    folder = _folder(run)
    rows = _rows(run) if folder else []
    return [row for row in rows if folder and (folder / f"{row['unit']}.img").is_file()]


def _chosen(run: RunFiles, kind: str) -> Any:
    folder = _folder(run)
    if folder is None:
        return None
    names = json.loads((folder / "chosen.json").read_text(encoding="utf-8"))[kind]
    by_name = {row["unit"]: row for row in _kept(run)}
    return _drawn(run, [by_name[name] for name in names if name in by_name])


def _drawn(run: RunFiles, rows: Sequence[Row]) -> Any:
    """Return a figure of the images with their true and predicted boxes, or None without images."""
    folder = _folder(run)
    if folder is None or not rows:
        return None
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    columns = min(4, len(rows))
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(2.4 * columns, 2.6 * lines), layout="constrained")
    for number, row in enumerate(rows, start=1):
        axes = figure.add_subplot(lines, columns, number)
        content = (folder / f"{row['unit']}.img").read_bytes()
        axes.imshow(decoded(content).image)
        axes.set_axis_off()
        axes.set_title(f"{row['unit']}, {row['slice:lighting']}", fontsize=8)
        boxes = [(box, _OBJECT, "") for box in read(row["expected"], 4)]
        for box in read(row["predicted"], 5):
            if box[4] >= _LEAST_SCORE:
                colour = _CERTAIN if box[4] >= CERTAIN else _OTHER
                boxes.append((box, colour, f"{box[4]:.2f}"))
        for (x1, y1, x2, y2, *_), colour, text in boxes:
            axes.add_patch(
                Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=colour, linewidth=1.2)
            )
            if text:
                axes.text(x1 + 1, y1 + 8, text, color=colour, fontsize=6)
    return figure


CHARTS = {
    "Precision and recall": curves,
    "Best: objects green, certain boxes red, others orange": best,
    "Worst: by the number of gaps that is expected": worst,
    "Two images of each store": stores,
}
