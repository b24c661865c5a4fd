"""ml.release.cost: machine time always, money where a price is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.backends.base import Pause, Run
from ml.release import cost
from ml.serving.client import Timing

TIMING = Timing(1.0, 2.0, 3.0, 1.8, 200, 20, "a machine")
RUN = Run(
    id="r",
    name="calm_river_01",
    status="Completed",
    experiment="tiny",
    folder=Path(),
    started=100.0,
    ended=160.0,
    pauses=(Pause(110.0, 130.0, "signal"),),
)


def test_without_a_price_the_amount_is_left_out() -> None:
    """Seconds, nodes and hardware are there, nothing is made up."""
    found = cost.of(RUN, TIMING, "Standard_DS3_v2")
    assert found == {
        "training": {"seconds": 40.0, "nodes": 1, "hardware": "a machine"},
        "thousand_predictions": {
            "seconds": pytest.approx(1.8),
            "nodes": 1,
            "hardware": "a machine",
            "instance_type": "Standard_DS3_v2",
        },
    }


def test_a_known_price_is_named_with_its_source() -> None:
    """The instance's price, asked for by its name; a training on this machine is nobody's bill."""
    asked = []

    def prices(instance_type: str) -> cost.Price:
        asked.append(instance_type)
        return cost.Price(0.5, "EUR", "a list", "2025-06")

    found = cost.of(RUN, TIMING, "Standard_DS3_v2", prices)
    assert asked == ["Standard_DS3_v2"]
    assert found["thousand_predictions"]["amount"] == pytest.approx(1.8 / 3600 * 0.5)  # type: ignore[index]
    assert "amount" not in found["training"]  # type: ignore[operator]
    assert (found["currency"], found["source"], found["as_of"]) == ("EUR", "a list", "2025-06")
