"""The router's recorded answers as figures of one step: their shapes, and their prediction bins."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ml.release.canary.signals import Side

# The first answers define the known shapes and the bins; they are not counted.
REFERENCE = 60
BINS = 10
_CATEGORIES = 16


def shape(value: Any) -> str:
    """The structure of an answer without its values: `{a:[number]}`."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{shape(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + "|".join(sorted({shape(item) for item in value})) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "no number"
    if isinstance(value, bool) or value is None:
        return json.dumps(value) if value is None else "bool"
    return "number" if isinstance(value, int | float) else "text"


def prediction(answer: Any, pointer: str) -> float | str | None:
    """The value at a pointer such as `answers/0/score`; None when it is not a number or text."""
    value = answer
    for part in pointer.split("/"):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, ValueError, TypeError):
            return None
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int | float):
        try:
            number = float(value)
        except OverflowError:  # hundreds of digits
            return None
        return number if math.isfinite(number) else None
    return value if isinstance(value, str) else None


def edges(numbers: Sequence[float]) -> list[float]:
    """Edges of up to BINS bins around the quantiles of `numbers`, and two edges far outside.

    Edges are half way between values: with few distinct values, a small difference does not change
    the bin.
    """
    levels = (np.arange(BINS) + 0.5) / BINS
    places: list[float] = np.quantile(numbers, levels, method="nearest").tolist()
    values = sorted(set(places))
    inner = [(low + high) / 2 for low, high in pairwise(values)]
    spread = max(values[-1] - values[0], abs(values[0]) / 2, 1e-9)
    return [values[0] - spread, *inner, values[-1] + spread]


class Answers:
    """Counts answers; the first ones of the `old` deployments define the bins and shapes.

    Those are not counted: the data that defines the bins must not be tested with them.
    """

    def __init__(self, pointer: str, old: Sequence[str], green: str) -> None:
        self._pointer = pointer
        self._old = old
        self._names = (*old, green)
        self._reference: list[Any] = []
        self._shapes: set[str] = set()
        self._edges: list[float] | None = None
        self.begin()

    def begin(self) -> None:
        """Reset the counts for a new step; shapes and bins stay."""
        self._read = dict.fromkeys(self._names, 0)
        self._strange = dict.fromkeys(self._names, 0)
        self._bins = {name: [0] * (_CATEGORIES + 1) for name in self._names}

    def add(self, deployment: str, status: int, body: str | None) -> None:
        """Take one recorded answer; those that are no 200 are counted elsewhere.

        `body` is None of one that was too long to be recorded: a shape like another, so that no
        version escapes by talking much, and no prediction.
        """
        if status != 200 or deployment not in self._names:
            return
        try:
            answer = None if body is None else json.loads(body)
            structure = "too long" if body is None else shape(answer)
        except (ValueError, RecursionError):
            answer, structure = None, "no JSON"
        if len(self._reference) < REFERENCE:
            if deployment in self._old:
                self._reference.append(prediction(answer, self._pointer))
                self._shapes.add(structure)
                if len(self._reference) == REFERENCE:
                    self._fix()
            return
        self._read[deployment] += 1
        self._strange[deployment] += structure not in self._shapes
        if self._pointer and body is not None:
            self._bins[deployment][self._bin(prediction(answer, self._pointer))] += 1

    def side(
        self, since: Mapping[str, Any], now: Mapping[str, Any], deployments: Sequence[str]
    ) -> Side:
        """The figures of the deployments together, between two states of the router's tallies."""

        def counted(what: str) -> int:
            return sum(int(now[name][what]) - int(since[name][what]) for name in deployments)

        latency = [
            np.subtract(now[name]["latency"], since[name]["latency"]) for name in deployments
        ]
        bins = [self._bins[name] for name in deployments]
        return Side(
            requests=counted("requests"),
            errors=counted("errors"),
            refused=counted("refused"),
            latency=np.sum(latency, axis=0).tolist(),
            answers=sum(self._read[name] for name in deployments),
            strange=sum(self._strange[name] for name in deployments),
            predictions=tuple(np.sum(bins, axis=0).tolist()) if self._pointer else (),
        )

    def _fix(self) -> None:
        numbers = [value for value in self._reference if isinstance(value, float)]
        if 2 * len(numbers) > len(self._reference):
            self._edges = edges(numbers)

    def _bin(self, value: float | str | None) -> int:
        """Numbers by quantile, texts by hash; anything else has its own bin."""
        if value is None:
            return _CATEGORIES
        if self._edges is not None and isinstance(value, float):
            return int(np.searchsorted(self._edges, value, side="right"))
        return zlib.crc32(str(value).encode("utf-8", "surrogatepass")) % _CATEGORIES
