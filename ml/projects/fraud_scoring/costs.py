"""The cost of errors and the resulting threshold, shared by the metrics and the endpoint.

A missed fraud costs its amount; a false alarm costs `REVIEW`, in the currency of the amounts. A
transaction is reviewed if a review has the lower expected cost.
"""

from __future__ import annotations

REVIEW = 5.0


def threshold(amount: float) -> float:
    """Return the fraud probability p above which a review has the lower expected cost.

    It solves p × amount = (1 − p) × REVIEW (Elkan 2001, The Foundations of Cost-Sensitive
    Learning). An amount of 0 or less gives 1: it is never reviewed.
    """
    return REVIEW / (REVIEW + max(amount, 0.0))
