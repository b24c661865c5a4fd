"""LightGBM: its import without packages that training does not use, and its contributions.

`import lightgbm` also imports scikit-learn, pandas and matplotlib where they are installed, for its
wrappers of them: 1.1 s against 0.2 s, in every trial of a sweep.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.measures.contributions import Contributions

# Contributions are sums of doubles over a few hundred trees.
ROUNDING = 1e-6
_OPTIONAL = ("sklearn", "pandas", "matplotlib", "graphviz", "dask", "pyarrow", "cffi")


def lightgbm() -> ModuleType:
    """LightGBM's module: `train`, `Dataset` and `Booster`, which is all that training needs.

    In a process that did not import lightgbm before, its scikit-learn wrappers are left out.
    """
    if "lightgbm" not in sys.modules:
        absent = [name for name in _OPTIONAL if name not in sys.modules]
        # None makes an import fail at once, which LightGBM takes as "not installed".
        sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
        try:
            importlib.import_module("lightgbm")
        finally:
            for name in absent:
                sys.modules.pop(name, None)
    return sys.modules["lightgbm"]


def threads() -> int:
    """The thread budget: OMP_NUM_THREADS when it is set, else every core that we may use."""
    return int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))


class NotAdditive(ValueError):
    """Contributions do not add up to the score, so they explain something else."""


def contributions(booster: Any, rows: NDArray[Any]) -> Contributions:
    """What each feature (column of `rows`) adds to their raw scores; it takes time for each row.

    LightGBM's `pred_contrib` is exact TreeSHAP (Lundberg et al. 2020, Nature Machine Intelligence
    2): the contributions of a row and its last column, the expected score, add up to the raw score.
    That is checked; NotAdditive says by how much they do not. Of several classes, each has raw
    scores and contributions of its own, one row each.
    """
    shap_values = np.asarray(booster.predict(rows, pred_contrib=True), dtype=np.float64)
    shap_values = shap_values.reshape(-1, rows.shape[1] + 1)
    raw = np.asarray(booster.predict(rows, raw_score=True), dtype=np.float64).reshape(-1)
    scale = max(float(np.abs(raw).max(initial=0.0)), 1.0)
    error = float(np.abs(shap_values.sum(axis=1) - raw).max(initial=0.0)) / scale
    if not error <= ROUNDING:
        raise NotAdditive(f"contributions are up to {error:g} of the score from adding up to it")
    return Contributions(shap_values[:, :-1], len(rows), "TreeSHAP", error)
