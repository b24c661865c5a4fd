"""What each feature adds to a score: exact contributions of LightGBM's trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

METHOD = "TreeSHAP"
# Contributions are sums of doubles over a few hundred trees.
ROUNDING = 1e-6


class NotAdditive(ValueError):
    """Contributions do not add up to the score, so they explain something else."""


@dataclass(frozen=True)
class Explained:
    """Each feature's share, largest first; how it was found, on how many rows, how exactly."""

    shares: tuple[tuple[str, float], ...]
    rows: int
    error: float

    def contributions(self) -> list[dict[str, str | float]]:
        """As evaluation.json has them."""
        return [{"feature": name, "share": share} for name, share in self.shares]

    def explanation(self) -> dict[str, str | float]:
        """As evaluation.json has it."""
        return {"method": METHOD, "rows": self.rows, "error": self.error}


def contributions(booster: Any, rows: NDArray[Any], names: Sequence[str]) -> Explained:
    """The mean absolute contribution of every feature to the raw score of `rows`, as a share.

    LightGBM's `pred_contrib` is exact TreeSHAP (Lundberg et al. 2020, Nature Machine Intelligence
    2): the contributions of a row and its last column, the expected score, add up to the raw score.
    That is checked; NotAdditive says by how much they do not. Of several classes, each has raw
    scores and contributions of its own; the means are over all.
    """
    shap_values = np.asarray(booster.predict(rows, pred_contrib=True), dtype=np.float64)
    shap_values = shap_values.reshape(-1, len(names) + 1)
    raw = np.asarray(booster.predict(rows, raw_score=True), dtype=np.float64).reshape(-1)
    scale = max(float(np.abs(raw).max(initial=0.0)), 1.0)
    error = float(np.abs(shap_values.sum(axis=1) - raw).max(initial=0.0)) / scale
    if not error <= ROUNDING:
        raise NotAdditive(f"contributions are up to {error:g} of the score from adding up to it")
    weight = np.abs(shap_values[:, :-1]).mean(axis=0)
    share = weight / max(float(weight.sum()), 1e-12)
    order = np.argsort(-share, kind="stable")
    return Explained(tuple((names[at], float(share[at])) for at in order), len(rows), error)
