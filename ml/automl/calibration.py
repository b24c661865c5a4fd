"""Calibrate probabilities; `ml.serving.scoring.members` defines the format of a calibration.

The methods are sigmoid (Platt 1999) and, for two classes, isotonic regression (Zadrozny and Elkan
2002), as in scikit-learn's `CalibratedClassifierCV`. Rows may have weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.automl.ensembles import OutOfFoldPredictions, Predict, cross_fitted
from ml.automl.validation import Rows
from ml.serving.scoring.members import calibrated, log_odds, normalized

Values = NDArray[np.float64]
Calibration = Mapping[str, Any]
Fit = Callable[[Values, NDArray[Any], Values], Calibration]
# "It is not advisable to use isotonic calibration when the number of calibration samples is too low
# (≪ 1000) since it then tends to overfit" (scikit-learn's user guide, 1.16.3).
ISOTONIC_ROWS = 1_000
# Minimum rows of the rarest class, and minimum relative improvement of the log loss.
FEWEST, GAIN = 45, 0.002


def sigmoid(predictions: Values, labels: NDArray[Any], weights: Values) -> Calibration:
    """Fit Platt's sigmoid to the log odds; one-vs-rest for more than two classes."""
    from sklearn.linear_model import LogisticRegression

    slopes, intercepts = [], []
    for number, odds in enumerate(log_odds(predictions).reshape(len(labels), -1).T):
        is_one = labels == (1 if predictions.ndim == 1 else number)
        slope, intercept = 1.0, 0.0
        if 0 < is_one.sum() < len(is_one):  # a fold by group or time may have one class only
            model = LogisticRegression(C=1e4, max_iter=500)
            model.fit(odds.reshape(-1, 1), is_one, sample_weight=weights)
            # A negative slope would reverse the ranking: the fit is noise.
            if model.coef_[0, 0] > 0:
                slope, intercept = float(model.coef_[0, 0]), float(model.intercept_[0])
        slopes.append(slope)
        intercepts.append(intercept)
    return {"kind": "sigmoid", "slope": slopes, "intercept": intercepts}


def isotonic(predictions: Values, labels: NDArray[Any], weights: Values) -> Calibration:
    """Fit an isotonic regression; return its support points."""
    from sklearn.isotonic import IsotonicRegression

    model = IsotonicRegression(y_min=1e-4, y_max=1 - 1e-4, out_of_bounds="clip")
    model.fit(predictions, labels, sample_weight=weights)
    scores, shares = model.X_thresholds_.tolist(), model.y_thresholds_.tolist()
    return {"kind": "isotonic", "scores": scores, "shares": shares}


def rarest(labels: NDArray[Any], rows: Sequence[Rows], weights: Values, classes: int) -> int:
    """Return the number of distinct rows of the rarest class; rows of weight 0 do not count.

    `rows` has the row numbers of each fold, or the same ones for each seed.
    """
    different = _different(rows, weights)
    return int(np.bincount(labels[different].astype(np.int64), minlength=classes).min())


def _different(rows: Sequence[Rows], weights: Values) -> Rows:
    different: Rows = np.unique(np.concatenate(rows))
    counts: Rows = different[weights[different] > 0]
    return counts


def calibrate(
    out_of_fold: OutOfFoldPredictions,
    value: Callable[[OutOfFoldPredictions], float],
    seed: int,
    weights: Values | None = None,
) -> tuple[Calibration | None, OutOfFoldPredictions, str]:
    """Return the best calibration, its cross-fitted predictions, and a note with its log loss.

    A calibration is used only if it lowers the cross-fitted log loss by GAIN without lowering
    `value`, the search's metric; otherwise return (None, `out_of_fold`, ""). `weights` has one
    weight for each row of the table.
    """
    from sklearn.metrics import log_loss

    scores, labels = out_of_fold.all
    classes = 2 if scores.ndim == 1 else scores.shape[1]
    by_row = np.ones(len(out_of_fold.labels)) if weights is None else weights
    if rarest(out_of_fold.labels, out_of_fold.rows, by_row, classes) < FEWEST:
        return None, out_of_fold, ""
    everywhere = np.concatenate(out_of_fold.rows)
    # Scale the weights to a mean of 1: their sum determines the effect of the fit's penalty.
    by_row = by_row / by_row[everywhere].mean()

    def loss(predictions: OutOfFoldPredictions) -> float:
        shares = np.clip(predictions.all[0], 1e-7, 1 - 1e-7)
        shares = shares if classes == 2 else normalized(shares)
        return float(log_loss(labels, shares, sample_weight=by_row[everywhere]))

    def fit_to(kind: Fit, values: Values, rows: Rows) -> Calibration:
        counts = by_row[rows] > 0
        return kind(values[counts], out_of_fold.labels[rows[counts]], by_row[rows[counts]])

    def predictor(kind: Fit) -> Callable[[Values, Rows], Predict]:
        return lambda values, rows: partial(calibrated, fit_to(kind, values, rows))

    before, worth = loss(out_of_fold), value(out_of_fold)
    best: tuple[float, Any, OutOfFoldPredictions] = (before * (1 - GAIN), None, out_of_fold)
    is_many = len(_different(out_of_fold.rows, by_row)) >= ISOTONIC_ROWS
    for kind in (sigmoid, isotonic) if classes == 2 and is_many else (sigmoid,):
        of_others = cross_fitted(out_of_fold, predictor(kind), seed)
        if loss(of_others) < best[0] and value(of_others) >= worth - 1e-9:
            best = loss(of_others), kind, of_others
    after, best_kind, corrected = best
    if best_kind is None:
        return None, out_of_fold, ""
    sentence = f"{best_kind.__name__}: log loss {before:.4g} before, {after:.4g} after"
    return fit_to(best_kind, scores, everywhere), corrected, sentence
