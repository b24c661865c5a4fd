"""The time of one prediction, with a clock that the test turns."""

from __future__ import annotations

import time

import pytest

from ml.toolkit.timing import WARM, latency


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

    found = latency(predict, list(range(1, 102)))
    assert calls == [*range(1, WARM + 1), *range(1, 102)]
    assert (found.p50_ms, found.p95_ms) == (pytest.approx(51), pytest.approx(96))
    assert found.cpu_ms == pytest.approx(2) and found.predictions == 101
    assert found.as_metrics()["predict_p50_ms"] == found.p50_ms


def test_waiting_is_no_work():
    """Sleep costs the clock and not the processor."""
    found = latency(lambda seconds: time.sleep(seconds), [0.02])
    assert found.p50_ms >= 20 > found.cpu_ms


def test_nothing_to_ask():
    with pytest.raises(ValueError, match="nothing to predict"):
        latency(len, [])
