"""Scales from values to pixels: linear, logarithmic, categorical, with ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from ml.reports.formatting import number, short

# Up to this many distinct numbers are drawn as categories, like the values of a `choice`.
CATEGORIES = 6
# More labels than this on one axis are thinned.
LABELS = 12
# A positive parameter gets a logarithmic axis when it spans more than this ratio and half of its
# values lie in so small a part of the range: values from a uniform distribution do not.
_RATIO, _CROWDED = 50.0, 0.2
# Numbers further from zero are not drawn: their differences would be infinite.
LARGEST = 1e300
# The margin at either end of a linear scale, as a share of its range.
_MARGIN = 0.04
# Values more than this many interquartile ranges away from the quartiles are drawn at the edge.
_OUTLIER = 4.0


class Scale(Protocol):
    """Values of one kind on a line of pixels."""

    def __call__(self, value: object) -> float:
        """The pixel of a value of the scale."""
        ...

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """About `count` (pixel, label) at round values."""
        ...


@dataclass(frozen=True)
class Linear:
    """`low` … `high` on the pixels `start` … `end` (which may run downwards); clipped there.

    `is_integer` values, such as steps, have no ticks between them.
    """

    low: float
    high: float
    start: float
    end: float
    is_integer: bool = False

    def __call__(self, value: object) -> float:
        """The pixel; values beyond the ends are drawn at the ends."""
        share = (_float(value) - self.low) / ((self.high - self.low) or 1.0)
        return self.start + min(1.0, max(0.0, share)) * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[tuple[float, str]]:
        """At multiples of 1, 2 or 5 times a power of ten."""
        span = self.high - self.low
        if span <= 1 / LARGEST:
            return [(self(self.low), number(self.low))]
        raw = max(span / max(1, count), 1.0 if self.is_integer else 0.0)
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * nice for nice in (1, 2, 5, 10) if power * nice >= raw * 0.999)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [(self(at * step), _label(at * step, digits)) for at in range(first, last + 1)]


@dataclass(frozen=True)
class Log:
    """As Linear, for positive values, by their logarithm."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: object) -> float:
        """The pixel; values beyond the ends are drawn at the ends."""
        line = Linear(math.log(self.low), math.log(self.high), self.start, self.end)
        return line(math.log(max(_float(value), self.low)))

    def ticks(self, count: int = 5) -> list[tuple[float, str]]:
        """At powers of ten, or at both ends when there are fewer than two."""
        first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
        powers = [10.0**power for power in range(first, last + 1)]
        powers = powers[:: max(1, math.ceil(len(powers) / max(1, count)))]
        if len(powers) < 2:
            powers = [self.low, self.high]
        return [(self(value), short(value)) for value in powers]


@dataclass(frozen=True)
class Category:
    """Distinct values at even distances."""

    values: tuple[object, ...]
    start: float
    end: float

    def __call__(self, value: object) -> float:
        """The pixel; KeyError for another value."""
        places = {str(category): place for place, category in enumerate(self.values)}
        if len(places) == 1:
            return (self.start + self.end) / 2
        share = places[str(value)] / (len(places) - 1)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = LABELS) -> list[tuple[float, str]]:
        """Every value, or every n-th when there are more than LABELS."""
        step = math.ceil(len(self.values) / LABELS)
        return [(self(value), short(value)) for value in self.values[::step]]


def scale_of(values: Sequence[object], start: float, end: float) -> Scale:
    """The scale that fits the values of a parameter."""
    if not all(is_number(value) for value in values):
        places = {str(value): value for value in values}
        return Category(tuple(places[name] for name in sorted(places)), start, end)
    numbers = sorted({_float(value) for value in values})
    if len(numbers) <= CATEGORIES:
        is_integer = all(isinstance(value, int) for value in values)
        return Category(tuple(int(n) if is_integer else n for n in numbers), start, end)
    if is_logarithmic(numbers):
        return Log(numbers[0], numbers[-1], start, end)
    return Linear(numbers[0], numbers[-1], start, end)


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """The range to draw of finite measurements, without outliers.

    A diverged trial with a loss of a million must not flatten the others.
    """
    ordered = sorted(values)
    low, high = max(ordered[0], -LARGEST), min(ordered[-1], LARGEST)
    if len(ordered) >= 8:
        first, third = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
        reach = _OUTLIER * (third - first)
        if reach > 0:
            low, high = max(low, first - reach), min(high, third + reach)
    margin = (high - low) * _MARGIN or abs(high) * _MARGIN or 1.0
    return low - margin, high + margin


def is_logarithmic(numbers: Sequence[float]) -> bool:
    """Whether values like these were most likely sampled from a log-uniform distribution."""
    low, high = min(numbers), max(numbers)
    if low <= 0 or high / low <= _RATIO:
        return False
    return (median(numbers) - low) / (high - low) < _CROWDED


def is_number(value: object) -> bool:
    """Whether a parameter's value is a number that can be drawn: finite and not a `bool`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST


def _float(value: object) -> float:
    assert isinstance(value, int | float)
    return float(value)


def _label(value: float, digits: int) -> str:
    if abs(value) >= 1e6 or digits > 5:
        return number(value)
    return f"{value:,.{digits}f}".replace("-", "−")
