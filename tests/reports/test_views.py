"""What templates show of an evaluation."""

from __future__ import annotations

from ml.measures.schema import Estimate, Evaluation
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


def test_a_slice_without_the_primary_metric_is_listed_last() -> None:
    """An AUC of one class is not defined; the slice has its count."""
    few, many = Estimate(0.9, 0.8, 1.0, 12), Estimate(0.7, 0.6, 0.8, 300)
    metrics = {"a": {"accuracy": few}, "b": {"auc": many}, "c": {}, "d": {"auc": few}}
    rows = views.slice_rows(Evaluation(primary_metric="auc", goal="maximize"), metrics)
    assert [value for value, _, _ in rows] == ["b", "d", "a", "c"]
    assert [estimate.count for _, estimate, _ in rows][:3] == [300, 12, 12]
