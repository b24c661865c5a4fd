"""What a trial is worth."""

from __future__ import annotations

import math

import pytest

from ml.sweeps.objective import leader, score


@pytest.mark.parametrize(
    ("curve", "goal", "expected"),
    [
        ([0.1, 0.9, 0.5], "maximize", 0.9),
        ([0.1, 0.9, 0.5], "minimize", 0.1),
        ([], "maximize", None),
        ([0.9, math.nan], "maximize", None),
        ([math.inf], "maximize", None),
        ([-math.inf, 0.2], "minimize", None),
    ],
)
def test_score(curve: list[float], goal: str, expected: float | None) -> None:
    """The best value logged; a curve with NaN or an infinity has none."""
    assert score(curve, goal) == expected


def test_the_earlier_of_equals_leads() -> None:
    """Trials without a score never lead."""
    assert leader({"a": None, "b": 0.5, "c": 0.5, "d": 0.4}, "maximize") == "b"
    assert leader({"a": None, "b": 0.5, "d": 0.4}, "minimize") == "d"
    assert leader({"a": None}, "maximize") is None
