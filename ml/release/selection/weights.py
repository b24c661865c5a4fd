"""select.yml: the weights of a trial's score; without the file, quality alone counts.

    score = w1 · quality − w2 · latency − w3 · cost − w4 · spread

Each term is its value ÷ a `reference`, so that a weight is the worth of one reference unit:
with quality in hundredths (reference 0.01, weight 1) and latency in ten milliseconds (reference 10,
weight 0.5), ten milliseconds cost as much as half a point of quality. The term `stability` is the
spread over seeds or folds. The project sets the references. If the range of the present trials were
used, another trial could reverse the order of two others (rank reversal; Belton and Gear, Omega
11(3), 1983).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ml.core import documents, settings
from ml.core.errors import UserError
from ml.core.repository import shown
from ml.core.settings import CLOSED, SchemaVersion

FILE = "select.yml"
TERMS = ("quality", "latency", "cost", "stability")

Weight = Annotated[float, Field(ge=0, description="What one reference unit of the term is worth.")]
Reference = Annotated[float, Field(gt=0, description="The unit of the term.")]
Metric = Annotated[str, Field(pattern=r"\S", description="The name of a logged metric.")]


@dataclass(frozen=True)
class Term:
    """A term of the score: `weight` × value ÷ `reference`."""

    __pydantic_config__ = CLOSED

    weight: Weight
    reference: Reference


@dataclass(frozen=True)
class Latency(Term):
    """Latency in milliseconds."""

    metric: Metric = "predict_p50_ms"


@dataclass(frozen=True)
class Cost(Term):
    """Cost in seconds of a node: training + predictions × prediction ÷ 1000."""

    training: Metric = "training_seconds"  # a metric in seconds
    prediction: Metric = "predict_cpu_ms"  # of one prediction, a metric in milliseconds
    predictions: Annotated[float, Field(ge=0)] = 0.0  # how many predictions one training serves


@dataclass(frozen=True)
class Stability(Term):
    """The standard deviation of the primary metric over seeds or folds."""

    metric: Metric | None = None  # None means the primary metric's name with `_std`


@dataclass(frozen=True, kw_only=True)
class _Terms:
    __pydantic_config__ = CLOSED

    quality: Term = field(default_factory=lambda: Term(1.0, 1.0))
    latency: Latency = field(default_factory=lambda: Latency(0.0, 1.0))
    cost: Cost = field(default_factory=lambda: Cost(0.0, 1.0))
    stability: Stability = field(default_factory=lambda: Stability(0.0, 1.0))


@dataclass(frozen=True, kw_only=True)
class Weights(_Terms):
    """The terms of the score. Quality is the sweep's primary metric."""

    source: str = ""  # path of select.yml, "" without one

    def term(self, name: str) -> Term:
        """Return the term of that name."""
        named: Term = getattr(self, name)
        return named


@dataclass(frozen=True, kw_only=True)
class _File(_Terms):
    schema_version: SchemaVersion


def read(project: Path | None) -> Weights:
    """Return the weights in a project's folder; without the file, quality alone counts.

    Raises UserError with every invalid setting.
    """
    path = project / FILE if project else None
    if path is None or not path.is_file():
        return Weights()
    document = documents.read(path)
    file = settings.read(_File, document)
    if file.quality.weight <= 0:
        raise UserError.with_code(
            "wrong-value",
            "`quality.weight` is 0",
            "more than 0: without quality every trial would score alike",
            place=document.place("quality"),
        )
    terms = {term: getattr(file, term) for term in TERMS}
    return Weights(**terms, source=shown(path))
