"""Write reference.json: a summary of inputs and predictions at evaluation, to detect drift.

It has order statistics of numbers, counts of categories, and lengths and shares of unknown words of
texts. Columns are named by their path in a request or a response (`question`, `answers/0/score`);
table columns by their name, and a table model's output by `prediction`. Predictions must not be of
training rows, on which a model is overconfident. Features are grouped by feature set, with the
values of the point-in-time join.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from types import MappingProxyType
from typing import Any, Literal

SCHEMA_VERSION = 1
REFERENCE = "reference.json"
Kind = Literal["numeric", "categorical", "text"]
# Maximum number of order statistics (evenly spaced) of a numeric column, and of categories.
SAMPLE = 1000
CATEGORIES = 500
# Minimum number of texts with a word for it to be stored; rarer words may be names of people.
SEEN_IN = 2
_WORD = re.compile(r"[^\W\d_]+")
MEASURES = ("characters", "words", "unknown words")
Columns = Mapping[str, tuple[Kind, Sequence[object]]]
NO_FEATURES: Mapping[str, tuple[str, str, Columns]] = MappingProxyType({})


def write_reference(
    folder: Path,
    digest: str,
    inputs: Columns,
    predictions: Columns,
    losses: Mapping[str, Sequence[float]],
    features: Mapping[str, tuple[str, str, Columns]] = NO_FEATURES,
) -> None:
    """Write reference.json for the model with `digest`, so that monitoring does not need the data.

    losses: prediction column → loss of each labelled row: 0 or 1 (category) or absolute error.
    features: feature set → (version, definition's sha256, joined columns).
    Raises ValueError for a column without any value.
    """
    document = {
        "schema_version": SCHEMA_VERSION,
        "digest": digest,
        "inputs": {name: summary(*column) for name, column in inputs.items()},
        "predictions": {name: summary(*column) for name, column in predictions.items()},
        "quality": {
            name: {"mean": fmean(values), "deviation": stdev(values), "rows": len(values)}
            for name, values in losses.items()
        },
        "features": {
            name: {
                "version": version,
                "definition": definition,
                "columns": {feature: summary(*column) for feature, column in columns.items()},
            }
            for name, (version, definition, columns) in features.items()
        },
    }
    text = json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REFERENCE).write_text(text, encoding="utf-8")


def summary(kind: Kind, values: Sequence[object]) -> dict[str, Any]:
    """Summarize a column for reference.json."""
    present = [value for value in (clean(kind, value) for value in values) if value is not None]
    if not present:
        raise ValueError(f"a {kind} column without any value")
    common: dict[str, Any] = {
        "kind": kind,
        "rows": len(values),
        "missing": len(values) - len(present),
    }
    if kind == "numeric":
        return {**common, "sample": _sample(float(str(value)) for value in present)}
    if kind == "categorical":
        counts = Counter(map(str, present))
        frequent = counts.most_common(CATEGORIES)
        return {
            **common,
            "counts": dict(frequent),
            "rest": len(present) - sum(n for _, n in frequent),
        }
    return {**common, **_text([str(value) for value in present])}


def clean(kind: Kind, value: object) -> float | str | None:
    """Return the value converted to its column's kind; None if missing, NaN or of another kind."""
    if kind == "numeric":
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if math.isfinite(value) else None
    if kind == "text":
        return value if isinstance(value, str) and value.strip() else None
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        # The label 1 may be 1.0 after a round trip through a table.
        return str(int(value)) if value.is_integer() else str(value)
    return str(value) if isinstance(value, str | int | float) and value != "" else None


def words(text: str) -> list[str]:
    """Return the words of a text, case folded, without numbers."""
    return _WORD.findall(text.casefold())


def measures(text: str, vocabulary: frozenset[str]) -> tuple[float, float, float]:
    """Return the values of MEASURES; the last is the share of words not in the vocabulary."""
    tokens = words(text)
    unknown = sum(word not in vocabulary for word in tokens)
    return float(len(text)), float(len(tokens)), unknown / len(tokens) if tokens else 1.0


def _text(texts: list[str]) -> dict[str, Any]:
    """Return the vocabulary of one half of the texts, and the measures of the other half.

    On the texts of the vocabulary itself, unknown words would be rare, so normal texts would look
    like drift.
    """
    shuffled = list(texts)
    random.Random(0).shuffle(shuffled)
    half = len(shuffled) // 2
    text_frequency = Counter(word for text in shuffled[:half] for word in set(words(text)))
    vocabulary = frozenset(
        word for word, texts_with in text_frequency.items() if texts_with >= SEEN_IN
    )
    columns = zip(*(measures(text, vocabulary) for text in shuffled[half:]), strict=True)
    return {
        "vocabulary": sorted(vocabulary),
        "measures": {name: _sample(column) for name, column in zip(MEASURES, columns, strict=True)},
    }


def _sample(values: Iterable[float]) -> list[float]:
    ordered = sorted(values)
    if len(ordered) <= SAMPLE:
        return ordered
    return [ordered[round(index * (len(ordered) - 1) / (SAMPLE - 1))] for index in range(SAMPLE)]
