"""Choose the axis range of measurements, and the scale of a parameter's values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeGuard

from ml.reports.formatting import MAX_LETTERS, short, shorten

# Up to this many distinct numbers are drawn as categories, like the values of a `choice`.
CATEGORIES = 6
# More labels than this on one axis are thinned.
LABELS = 12
# A positive parameter gets a logarithmic axis if its range exceeds this ratio and half of its
# values lie in this lowest share of it, which values of a uniform distribution do not.
_RATIO, _CROWDED = 50.0, 0.2
# Numbers further from zero are not drawn: their differences would be infinite.
LARGEST = 1e300
# The margin at either end of a linear scale, as a share of its range.
_MARGIN = 0.04
# Values more than this many interquartile ranges away from the quartiles are drawn at the edge.
_OUTLIER = 4.0
# Further from one than these, ticks are written as powers of ten.
_SMALL, _LARGE = 1e-4, 1e7


@dataclass(frozen=True)
class Scale:
    """The scale and the axis of some values, as Vega's settings."""

    scale: Mapping[str, Any]
    axis: Mapping[str, Any]
    shares: Mapping[str, float]  # value as text → its position on the scale, 0 to 1


def scale_of(values: Sequence[object]) -> Scale:
    """Return the scale that fits a parameter's values; None means no value."""
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
    """Return the scale of measurements, without outliers."""
    low, high = bounds(values)
    shares = {str(value): min(1.0, max(0.0, (value - low) / (high - low))) for value in values}
    return Scale(**axis(low, high), shares=shares)


def short_names(values: Sequence[object], letters: int = MAX_LETTERS) -> list[str]:
    """Return the labels of an axis, shortened only if they stay distinct."""
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
    """Scale and axis of a channel with about `count` ticks; values beyond are drawn at the ends.

    `is_integer` values, such as steps, have no ticks between them.
    """
    if is_integer and high - low <= count:
        ticks = [*range(math.ceil(low), math.floor(high) + 1)]
        settings |= {"values": ticks, "format": ",d"}
    largest = max(abs(low), abs(high))
    style = {} if _SMALL <= largest < _LARGE else {"format": "~e"}
    scale = {"type": kind, "domain": [low, high], "nice": False, "zero": False, "clamp": True}
    return {"scale": scale, "axis": {"tickCount": count, "labelOverlap": True, **style, **settings}}


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the range to draw of finite measurements, without outliers.

    A diverged trial with a loss of a million must not flatten the others.
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
    """Return whether the values were most likely sampled from a log-uniform distribution."""
    low, high = min(numbers), max(numbers)
    if low <= 0 or high / low <= _RATIO:
        return False
    return (median(numbers) - low) / (high - low) < _CROWDED


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a parameter's value can be plotted: a finite number, not a `bool`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST
