"""What templates show of an evaluation."""

from __future__ import annotations

from ml.measures.schema import Estimate
from ml.reports import views


def test_rates_of_slices_are_those_that_were_measured() -> None:
    """Of a binary model, in one order; of a regression none."""
    estimate = Estimate(0.5, 0.4, 0.6, 30)
    measured = {
        "a": {"auc": estimate, "selection_rate": estimate},
        "b": {"selection_rate": estimate},
    }
    assert views.rates(measured) == ["selection_rate"]
    assert views.rates({"a": {"mae": estimate}}) == []
