"""What a trial's score weighs: a project's select.yml, or quality alone without one.

    score = w1 · quality − w2 · latency − w3 · cost − w4 · spread

Each term is its value ÷ a `reference`, so that a weight says what one reference unit is worth:
with quality in hundredths (reference 0.01, weight 1) and latency in ten milliseconds (reference 10,
weight 0.5), ten milliseconds cost as much as half a point of quality. Stability is the spread over
seeds or folds with its sign turned. The references are the project's and not the range of the
trials at hand: scaled by that, another trial could turn the order of two others round (rank
reversal; Belton and Gear, Omega 11(3), 1983).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

import yaml

from ml.core.errors import Place, Problem, Refused
from ml.core.repository import shown

FILE = "select.yml"
SCHEMA_VERSION = 1
TERMS = ("quality", "latency", "cost", "stability")


@dataclass(frozen=True)
class Term:
    """A term of the score: `weight` × value ÷ `reference`."""

    weight: float = 0.0
    reference: float = 1.0


@dataclass(frozen=True)
class Weights:
    """The terms of the score, and the metrics that a trial logs for them.

    Quality is the sweep's primary metric. `latency` is in milliseconds; `cost` is in seconds of a
    node: `training` + `predictions` × `prediction` (in milliseconds), the predictions that one
    training serves. `stability` is the standard deviation of the primary metric over seeds or
    folds, by default logged as the primary metric's name with `_std`.
    """

    quality: Term = field(default_factory=lambda: Term(1.0, 1.0))
    latency: Term = field(default_factory=Term)
    cost: Term = field(default_factory=Term)
    stability: Term = field(default_factory=Term)
    latency_metric: str = "predict_p50_ms"
    training_metric: str = "training_seconds"
    prediction_metric: str = "predict_cpu_ms"
    predictions: float = 0.0
    stability_metric: str = ""
    source: str = ""

    def of(self, term: str) -> Term:
        """The term of that name."""
        found: Term = getattr(self, term)
        return found


# The settings of each term besides its weight and reference, with the field that holds them.
_METRICS: Mapping[str, Mapping[str, str]] = {
    "quality": {},
    "latency": {"metric": "latency_metric"},
    "cost": {
        "training": "training_metric",
        "prediction": "prediction_metric",
        "predictions": "predictions",
    },
    "stability": {"metric": "stability_metric"},
}


def read(project: Path | None) -> Weights:
    """The weights in a project's folder; without the file, quality alone weighs.

    Raises Refused with file and line for what is wrong.
    """
    path = project / FILE if project else None
    if path is None or not path.is_file():
        return Weights()
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise _wrong(path, line, f"no YAML: {error.problem}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _wrong(path, 1, str(error).splitlines()[0]) from None
    top = _fields(path, root, ("schema_version", *TERMS))
    version, line = _plain(path, top.pop("schema_version", None))
    if version != SCHEMA_VERSION:
        raise _wrong(path, line, f"`schema_version` is {version}", str(SCHEMA_VERSION))
    values: dict[str, object] = {"source": shown(path)}
    for term, node in top.items():
        values |= _term(path, term, node)
    made = Weights(**values)  # type: ignore[arg-type]
    if made.quality.weight <= 0:
        raise _wrong(path, 1, "quality has no weight", "`quality.weight` above zero")
    return made


def _term(path: Path, term: str, node: yaml.Node) -> dict[str, object]:
    stated = _fields(path, node, ("weight", "reference", *_METRICS[term]))
    missing = {"weight", "reference"} - stated.keys()
    if missing:
        found = f"`{term}` has no {' and no '.join(sorted(missing))}"
        raise _wrong(path, node.start_mark.line + 1, found, "a weight and a reference")
    values: dict[str, object] = {}
    numbers: dict[str, float] = {}
    for name, of in stated.items():
        value, line = _plain(path, of)
        if name in ("weight", "reference", "predictions"):
            if not _is_number(value) or value < 0 or (name == "reference" and value == 0):
                least = "above zero" if name == "reference" else "zero or more"
                raise _wrong(path, line, f"`{term}.{name}` is {value}", f"a number, {least}")
            numbers[name] = float(value)
        elif not isinstance(value, str) or not value.strip():
            raise _wrong(path, line, f"`{term}.{name}` is {value}", "the name of a metric")
        else:
            values[_METRICS[term][name]] = value
    if "predictions" in numbers:
        values["predictions"] = numbers["predictions"]
    return {term: Term(numbers["weight"], numbers["reference"]), **values}


def _fields(path: Path, node: yaml.Node | None, known: tuple[str, ...]) -> dict[str, yaml.Node]:
    line = node.start_mark.line + 1 if node else 1
    if not isinstance(node, yaml.MappingNode):
        raise _wrong(path, line, "no mapping", f"a mapping of {', '.join(known)}")
    found: dict[str, yaml.Node] = {}
    for key, value in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in found:
            raise _wrong(path, line, f"`{name}` twice", "each field once")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean `{near[0]}`?" if near else ""
            raise _wrong(path, line, f"`{name}` is not a field here", ", ".join(known), hint)
        found[name] = value
    return found


def _plain(path: Path, node: yaml.Node | None) -> tuple[object, int]:
    if node is None:
        return None, 1
    line = node.start_mark.line + 1
    try:
        return yaml.SafeLoader("").construct_document(node), line
    except (yaml.YAMLError, ValueError) as error:
        raise _wrong(path, line, str(getattr(error, "problem", error))) from None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _wrong(path: Path, line: int, found: str, expected: str = "", hint: str = "") -> Refused:
    place = Place(shown(path), line)
    return Refused(Problem("select-file", found, expected or "a select.yml", hint, place))
