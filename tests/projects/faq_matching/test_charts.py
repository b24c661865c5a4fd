"""The project's charts."""

from __future__ import annotations

from pathlib import Path

from ml.projects.faq_matching.charts import LAST, ranks
from ml.toolkit.figures import RunFiles


def test_ranks(tmp_path: Path) -> None:
    """The shares grow with the rank; a run without an evaluation has no chart."""
    path = tmp_path / "predictions.csv"
    path.write_text("unit,split,rank\na,test,1\nb,test,3\nc,test,40\nd,validation,2\n")
    chart = ranks(RunFiles("calm_river_01", {}, {}, path, {}))
    assert chart is not None
    shares = [row["share"] for row in chart.to_dict()["data"]["values"]]
    assert shares == [1 / 3] * 2 + [2 / 3] * (LAST - 2) + [0.0] + [1.0] * (LAST - 1)
    assert ranks(RunFiles("calm_river_01", {}, {}, None, {})) is None
