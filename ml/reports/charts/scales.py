"""Choose the axis ranges of metrics, and the scales of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeGuard

from ml.reports.formatting import MAX_LETTERS, short, shorten

# A parameter with at most this many distinct numbers is drawn like categories.
CATEGORIES = 6
# Maximum labels on an axis of categories; of more, every second, third … is shown.
LABELS = 12
# A positive parameter gets a logarithmic axis if max / min exceeds the ratio, and the median lies
# in this lowest share of the range, which is unlikely for a uniform distribution.
_RATIO, _CROWDED = 50.0, 0.2
# Larger absolute numbers are not drawn: their differences could be infinite.
LARGEST = 1e300
# The margin at either end of a linear scale, as a share of its range.
_MARGIN = 0.04
# Outliers: values this many interquartile ranges beyond a quartile are drawn at the edge.
_OUTLIER = 4.0
# Ticks of an axis with a smaller or larger maximum are in scientific notation.
_SMALL, _LARGE = 1e-4, 1e7


@dataclass(frozen=True)
class Scale:
    """The scale and the axis for some values, as Vega settings."""

    scale: Mapping[str, Any]
    axis: Mapping[str, Any]
    shares: Mapping[str, float]  # value as text → its position on the scale, 0 to 1


def scale_of(values: Sequence[object]) -> Scale:
    """Return the scale for a parameter's values: linear, logarithmic or categories; skip None."""
    by_text = {str(value): value for value in values if value is not None}
    numbers = {text: float(value) for text, value in by_text.items() if is_number(value)}
    if len(set(numbers.values())) > CATEGORIES and len(numbers) == len(by_text):
        is_log = is_logarithmic([*numbers.values()])
        places = {text: math.log(n) if is_log else n for text, n in numbers.items()}
        first, last = min(places.values()), max(places.values())
        return Scale(
            **axis(
                min(numbers.values()), max(numbers.values()), kind="log" if is_log else "linear"
            ),
            shares={text: (place - first) / (last - first) for text, place in places.items()},
        )
    texts = sorted(by_text, key=lambda text: (numbers.get(text, 0.0), text))
    names = short_names([by_text[text] for text in texts])
    step = 1 / (len(names) - 1) if len(names) > 1 else 0.0
    return Scale(
        {"type": "point", "domain": names, "padding": 0, "reverse": True},
        {"values": names[:: math.ceil(len(names) / LABELS)]},
        {text: place * step if step else 0.5 for place, text in enumerate(texts)},
    )


def scale_of_metric(values: Sequence[float]) -> Scale:
    """Return the scale for a metric's values; outliers are at its ends."""
    low, high = bounds(values)
    shares = {str(value): min(1.0, max(0.0, (value - low) / (high - low))) for value in values}
    return Scale(**axis(low, high), shares=shares)


def short_names(values: Sequence[object], letters: int = MAX_LETTERS) -> list[str]:
    """Return the values as axis labels, shortened to `letters` unless two would become equal."""
    names = [shorten(short(value), letters) for value in values]
    return names if len(set(names)) == len(names) else [*map(str, values)]


def axis(
    low: float,
    high: float,
    count: int = 5,
    kind: str = "linear",
    is_integer: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Return the arguments `scale` and `axis` of an Altair channel with about `count` ticks.

    Values beyond `low` and `high` are drawn at the ends. `is_integer` allows ticks only at whole
    numbers, such as steps.
    """
    if is_integer and high - low <= count:
        ticks = [*range(math.ceil(low), math.floor(high) + 1)]
        settings |= {"values": ticks, "format": ",d"}
    largest = max(abs(low), abs(high))
    style = {} if _SMALL <= largest < _LARGE else {"format": "~e"}
    scale = {"type": kind, "domain": [low, high], "nice": False, "zero": False, "clamp": True}
    return {"scale": scale, "axis": {"tickCount": count, "labelOverlap": True, **style, **settings}}


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the axis range of finite values, without outliers.

    A diverged trial with a loss of a million would otherwise flatten all others.
    """
    ordered = sorted(values)
    low, high = (min(LARGEST, max(-LARGEST, end)) for end in (ordered[0], ordered[-1]))
    if len(ordered) >= 8:
        first, third = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
        reach = _OUTLIER * (third - first)
        if reach > 0:
            low, high = max(low, first - reach), min(high, third + reach)
    margin = (high - low) * _MARGIN or abs(high) * _MARGIN or 1.0
    return low - margin, high + margin


def is_logarithmic(numbers: Sequence[float]) -> bool:
    """Return whether the values look like a sample of a log-uniform distribution."""
    low, high = min(numbers), max(numbers)
    if low <= 0 or high / low <= _RATIO:
        return False
    return (median(numbers) - low) / (high - low) < _CROWDED


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a parameter's value can be plotted: a finite number, not a `bool`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST
