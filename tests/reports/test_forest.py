"""Forest plots of paired differences."""

from __future__ import annotations

import math
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.reports.charts.forest import SCALE, ForestRow, forest_row, text_plot
from tests.conftest import ROOT

SPANS = [
    ForestRow("test_known", 0.02, 0.01, 0.03),
    ForestRow("topic=gpu", -0.05, -0.1, 0.0),
    ForestRow("topic=cost", -0.08, -0.1, -0.02),
]


def test_the_text_plot():
    """Zero in the middle, ends and mean in order, the numbers at the end."""
    head, first, second, _ = text_plot(SPANS)
    assert head.index("0") == head.index("worse") + SCALE // 2
    scale = first[12 : 12 + SCALE]
    assert scale.index("┊") == SCALE // 2
    assert scale.index("├") < scale.index("●") < scale.rindex("┤")
    assert scale.index("├") > scale.index("┊")
    assert first.endswith("+0.02 (+0.01 to +0.03)")
    assert second[12:].startswith("├")


def test_the_text_plot_needs_no_packages():
    """The comment of a pull request is made by Python alone."""
    code = "import ml.reports.pull_requests.comparison, ml.reports.charts.forest"
    subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, check=True)


def test_no_rows():
    assert [*text_plot([])] == []


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e308])
def test_values_that_cannot_be_drawn(bad: float):
    assert forest_row("x", 0.1, bad, 0.2) is None and forest_row("x", bad, 0.0, 0.2) is None


def test_less_is_better():
    """The sign says on which side the interval is; the numbers stay candidate minus champion."""
    row = forest_row("loss", -0.2, -0.3, -0.1, sign=-1)
    assert row == ForestRow("loss", 0.2, 0.1, 0.3, sign=-1)
    assert str(row) == "−0.2 (−0.3 to −0.1)"
    line = [*text_plot([row])][1]
    assert line.index("┊") < line.index("├") and line.endswith(str(row))


ends = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(st.text(min_size=1, max_size=40), ends, ends, ends), max_size=6))
def test_every_scale_has_the_same_width(drawn: list[tuple[str, float, float, float]]):
    """For any labels and numbers: a mean between two ends, in its column."""
    spans = [
        ForestRow(label, mean, low, high)
        for label, *numbers in drawn
        for low, mean, high in [sorted(numbers)]
    ]
    _, *lines = text_plot(spans) if spans else [""]
    assert len(lines) == len(spans)
    for line in lines:
        scale = re.search(rf"  ([ ┊├─┤●]{{{SCALE}}})  [+−∞\dNa]", line)
        assert scale and scale[1].count("●") == 1
