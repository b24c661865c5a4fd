"""Probabilities that are as often right as they say, in numbers of `ml.serving.scoring.members`:
sigmoid (Platt 1999), or of two classes isotonic regression (Zadrozny and Elkan 2002).
scikit-learn's `CalibratedClassifierCV` fits the same, as an object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.automl.ensembles import Answers, Predict, crossed
from ml.serving.scoring.members import calibrated, log_odds, normalized

Values = NDArray[np.float64]
Calibration = Mapping[str, Any]
Fit = Callable[[Values, NDArray[Any]], Calibration]
# "It is not advisable to use isotonic calibration when the number of calibration samples is too low
# (≪ 1000) since it then tends to overfit" (scikit-learn's user guide, 1.16.3).
ISOTONIC_ROWS = 1_000
# Rows of the rarest class for each fold, and the share of the log loss that is to be gained.
FEWEST, GAIN = 15, 0.002


def sigmoid(answers: Values, labels: NDArray[Any]) -> Calibration:
    """Platt's, of the log odds; of several classes one for each against the others."""
    from sklearn.linear_model import LogisticRegression

    slopes, intercepts = [], []
    for at, odds in enumerate(log_odds(answers).reshape(len(labels), -1).T):
        is_one = labels == (1 if answers.ndim == 1 else at)
        model = LogisticRegression(C=1e4, max_iter=500).fit(odds.reshape(-1, 1), is_one)
        slope, intercept = float(model.coef_[0, 0]), float(model.intercept_[0])
        # One that turns the order round has learnt noise.
        slopes.append(slope if slope > 0 else 1.0)
        intercepts.append(intercept if slope > 0 else 0.0)
    return {"kind": "sigmoid", "slope": slopes, "intercept": intercepts}


def isotonic(answers: Values, labels: NDArray[Any]) -> Calibration:
    """The best curve that never falls, by its corners."""
    from sklearn.isotonic import IsotonicRegression

    model = IsotonicRegression(y_min=1e-4, y_max=1 - 1e-4, out_of_bounds="clip")
    model.fit(answers, labels)
    scores, shares = model.X_thresholds_.tolist(), model.y_thresholds_.tolist()
    return {"kind": "isotonic", "scores": scores, "shares": shares}


def calibrate(
    answers: Answers, value: Callable[[Answers], float], seed: int
) -> tuple[Calibration | None, Answers, str]:
    """The calibration that these answers ask for, the answers as others correct them, a sentence.

    One counts where it lowers the log loss of answers that it was not fitted to and does not lower
    `value`, the metric of the search.
    """
    from sklearn.metrics import log_loss

    scores, labels = answers.all
    classes = 2 if scores.ndim == 1 else scores.shape[1]
    counts = np.bincount(labels.astype(np.int64), minlength=classes)
    if counts.min() < FEWEST * len(answers.rows):
        return None, answers, ""

    def loss(of: Answers) -> float:
        shares = np.clip(of.all[0], 1e-7, 1 - 1e-7)
        return float(log_loss(labels, shares if classes == 2 else normalized(shares)))

    before, worth = loss(answers), value(answers)
    best: tuple[float, Any, Answers] = (before * (1 - GAIN), None, answers)
    kinds = (sigmoid, isotonic) if classes == 2 and len(scores) >= ISOTONIC_ROWS else (sigmoid,)
    for fit in kinds:
        of_others = crossed(answers, _predict_by(fit), seed)
        if loss(of_others) < best[0] and value(of_others) >= worth - 1e-9:
            best = loss(of_others), fit, of_others
    after, fit_of_best, corrected = best
    if fit_of_best is None:
        return None, answers, ""
    sentence = f"{fit_of_best.__name__}: log loss {before:.4g} before, {after:.4g} after"
    return fit_of_best(scores, labels), corrected, sentence


def _predict_by(fit: Fit) -> Callable[[Values, NDArray[Any]], Predict]:
    def predict(answers: Values, labels: NDArray[Any]) -> Predict:
        calibration = fit(answers, labels)
        return lambda of: calibrated(calibration, of)

    return predict
