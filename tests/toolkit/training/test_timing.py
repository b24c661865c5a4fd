"""The time of one prediction, with a clock that the test turns."""

from __future__ import annotations

import time

import pytest

from ml.toolkit.training.timing import WARM, latency


@pytest.fixture
def turned(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Two clocks in seconds, which stand still unless somebody turns them."""
    clocks = {"wall": 0.0, "cpu": 0.0}
    monkeypatch.setattr(time, "perf_counter", lambda: clocks["wall"])
    monkeypatch.setattr(time, "process_time", lambda: clocks["cpu"])
    return clocks


def test_percentiles_of_what_was_asked(turned: dict[str, float]):
    """Milliseconds by the clock and of the processor, each question once; warm-ups do not count."""
    calls: list[int] = []

    def predict(number: int) -> None:
        calls.append(number)
        turned["wall"] += 9.0 if len(calls) <= WARM else number / 1000
        turned["cpu"] += 9.0 if len(calls) <= WARM else 0.002

    measurement = latency(predict, list(range(1, 102)))
    assert calls == [*range(1, WARM + 1), *range(1, 102)]
    assert (measurement.p50_ms, measurement.p95_ms) == (pytest.approx(51), pytest.approx(96))
    assert measurement.cpu_ms == pytest.approx(2) and measurement.predictions == 101
    assert measurement.as_metrics()["predict_p50_ms"] == measurement.p50_ms


def test_waiting_is_no_work():
    """Sleep costs the clock and not the processor."""
    measurement = latency(lambda seconds: time.sleep(seconds), [0.02])
    assert measurement.p50_ms >= 20 > measurement.cpu_ms


def test_nothing_to_ask():
    with pytest.raises(ValueError, match="nothing to predict"):
        latency(len, [])
