"""What errors cost, and the threshold that follows: metrics and the endpoint use the same one.

A fraud that is missed costs its amount, and a false alarm a review. A transaction is reviewed where
that is expected to cost less.
"""

from __future__ import annotations

REVIEW = 5.0


def threshold(amount: float) -> float:
    """Return the probability above which a review costs less than the fraud: where p × amount is
    (1 − p) × REVIEW (Elkan 2001, The Foundations of Cost-Sensitive Learning). It is 1 for an
    amount of 0 or less, of which a fraud takes nothing.
    """
    return REVIEW / (REVIEW + max(amount, 0.0))
