"""ml.release.evidence.cost: machine time always, money where a price is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ml.backends.runs import Pause, Run
from ml.release.evidence import cost
from policies.promotion.evidence import Latency

LATENCY = Latency(1.0, 2.0, 3.0, 1.8, 200, 20, "a machine", "Standard_DS3_v2")
UNNAMED = replace(LATENCY, instance_type=None)
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
    found = cost.estimate(RUN, LATENCY)
    assert found == {
        "training": {
            "seconds": 40.0,
            "nodes": 1,
            "hardware": "a machine",
            "note": "it ran on this machine; the price of its compute is unknown here",
        },
        "thousand_predictions": {
            "seconds": pytest.approx(1.8),
            "nodes": 1,
            "hardware": "a machine",
            "instance_type": "Standard_DS3_v2",
            "note": "the price of Standard_DS3_v2 is unknown here",
        },
    }


def test_a_known_price_is_named_with_its_source() -> None:
    """The instance's price, asked for by its name; a training on this machine is nobody's bill."""
    asked = []

    def prices(instance_type: str) -> cost.Price:
        asked.append(instance_type)
        return cost.Price(0.5, "EUR", "a list", "2025-06")

    found = cost.estimate(RUN, LATENCY, prices)
    assert asked == ["Standard_DS3_v2"]
    assert found["thousand_predictions"]["amount"] == pytest.approx(1.8 / 3600 * 0.5)  # type: ignore[index]
    assert "amount" not in found["training"]  # type: ignore[operator]
    assert (found["currency"], found["source"], found["as_of"]) == ("EUR", "a list", "2025-06")


def test_training_is_priced_as_the_nodes_that_its_job_asks_for() -> None:
    """Seconds, nodes and the cluster's price; and what that rests on."""

    def prices(wanted: str) -> cost.Price | None:
        if wanted != "azureml:big":
            return None
        return cost.Price(3.0, "EUR", "a list", "2025-06", "Standard_NC6")

    found = cost.estimate(RUN, UNNAMED, prices, {"compute": "azureml:big", "nodes": 4})
    training = found["training"]
    assert isinstance(training, dict)
    assert (training["nodes"], training["instance_type"]) == (4, "Standard_NC6")
    assert training["amount"] == pytest.approx(40 / 3600 * 4 * 3)
    assert "as if a node of azureml:big" in training["note"] and found["currency"] == "EUR"
    other = cost.estimate(RUN, UNNAMED, prices, {"compute": "azureml:small", "nodes": 4})[
        "training"
    ]
    assert isinstance(other, dict)
    assert "amount" not in other and "the price of azureml:small" in other["note"]
    here = cost.estimate(RUN, UNNAMED, prices, {"compute": "local"})["training"]
    assert isinstance(here, dict) and "amount" not in here
