"""What a planned sweep searches through, and when it gives a trial up."""

from __future__ import annotations

from dataclasses import dataclass

from ml.core.errors import Place


@dataclass(frozen=True)
class Dimension:
    """One hyperparameter's distribution, by Azure ML's name: choice uniform quniform loguniform …

    `args` as Azure ML writes them on the wire: `choice` has its values (a mapping value is a nested
    space: name → Dimension), the others their numbers (uniform: low, high; quniform: low, high, q;
    normal: mu, sigma; randint: upper).
    """

    name: str
    kind: str
    args: tuple[object, ...]
    place: Place


@dataclass(frozen=True)
class EarlyTermination:
    """A policy: bandit, median_stopping or truncation_selection, with Azure ML's parameters."""

    type: str
    place: Place
    evaluation_interval: int = 1
    delay_evaluation: int = 0
    slack_factor: float | None = None
    slack_amount: float | None = None
    truncation_percentage: int | None = None
