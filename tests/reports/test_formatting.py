"""Numbers and other values as text."""

from __future__ import annotations

import math

import pytest

from ml.reports.formatting import count, digest, duration, number, short, signed, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.681506849, "0.6815"),
        (0.661, "0.6610"),
        (12345.6, "12,346"),
        (120, "120"),
        (0.0, "0"),
        (-0.25, "−0.2500"),
        (0.0000012, "1.2e−06"),
        (1.7e300, "1.7e+300"),
        (math.nan, "NaN"),
        (-math.inf, "−∞"),
    ],
)
def test_number(value: float, text: str) -> None:
    """At most four digits, a real minus; NaN and infinities."""
    assert number(value) == text


def test_other_forms() -> None:
    """Differences, parameters, durations, digests, counts."""
    assert (signed(0.5), signed(-0.5)) == ("+0.5000", "−0.5000")
    assert (short(0.1), short(100.0), short("a" * 50)) == ("0.1", "100", f"{'a' * 19}…{'a' * 20}")
    times = (0.44, 7.51, 59, 119.7, 185, 7800)
    assert [duration(seconds) for seconds in times] == [
        *("0.4 s", "7.5 s", "59 s", "2 min 00 s", "3 min 05 s", "2 h 10 min")
    ]
    assert [size(count) for count in (0, 999, 1_500, 2e9)] == ["0 B", "999 B", "1.5 kB", "2.0 GB"]
    assert digest("sha256:" + "ab" * 32) == "abababababab"
    assert (count(1, "trial"), count(1000, "trial")) == ("1 trial", "1,000 trials")
