"""Charts of an evaluation, with images and without."""

from __future__ import annotations

import io
import json
from pathlib import Path

from ml.projects.shelf_gaps import charts
from ml.projects.shelf_gaps.shelves import shelves
from ml.toolkit.figures import RunFiles

HEAD = "unit,split,group,expected,predicted,rank,score,slice:store,slice:lighting\n"


def run(predictions: Path | None) -> RunFiles:
    return RunFiles("run", {}, {}, predictions, {})


def test_what_is_drawn(tmp_path: Path) -> None:
    """A curve that ends at the recall, and images with their boxes."""
    (tmp_path / "looked_at").mkdir()
    names = []
    lines = [HEAD]
    for shelf in shelves("north", 3, 64, 0):
        file = io.BytesIO()
        shelf.image.save(file, "JPEG")
        (tmp_path / f"looked_at/{shelf.name}.img").write_bytes(file.getvalue())
        box = '"[[1, 2, 30, 40{}]]"'
        boxes = box.format(""), box.format(", 0.9" if names else ", 0.3")
        lines.append(f"{shelf.name},test,,{boxes[0]},{boxes[1]},0,0.9,north,dim\n")
        names.append(shelf.name)
    (tmp_path / "predictions.csv").write_text("".join(lines))
    chosen = {"best": names[:2], "worst": names[2:]}
    (tmp_path / "looked_at/chosen.json").write_text(json.dumps(chosen))
    of = run(tmp_path / "predictions.csv")
    curve = charts.curves(of).to_dict()["data"]["values"]
    last = [point for point in curve if point["overlap"] == "0.5"][-1]
    assert last == {"overlap": "0.5", "recall": 1.0, "precision": 1.0}
    assert [len(charts.CHARTS[title](of).axes) for title in list(charts.CHARTS)[1:]] == [2, 1, 2]
    (axes, _) = charts.best(of).axes
    assert len(axes.patches) == 2 and [text.get_text() for text in axes.texts] == ["0.30"]


def test_a_run_without_an_evaluation(tmp_path: Path) -> None:
    """No chart; without the images the curve alone."""
    assert [chart(run(None)) for chart in charts.CHARTS.values()] == [None] * 4
    (tmp_path / "predictions.csv").write_text(HEAD + 'a,test,,"[[1, 2, 3, 4]]",[],0,0,north,dim\n')
    drawn = [chart(run(tmp_path / "predictions.csv")) for chart in charts.CHARTS.values()]
    assert drawn[0] is not None and drawn[1:] == [None] * 3
