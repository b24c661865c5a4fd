"""Converts a row of the table to the model's input.

Training, evaluation and the endpoint use this file, and nothing else, so that a row means the same
to all of them.
"""

from __future__ import annotations

from ml.serving.scoring.columns import Encoding, Row

# `codes`: a category is a number; `one-hot`: a column for each.
ENCODING: Encoding = "codes"


def derive(row: Row) -> Row:
    """Return the row with the amount relative to the card's usual one, and without the holder's
    age: metrics compare groups of it, and no model uses it.
    """
    amount, usual = row["amount"], row["usual_amount"]
    unusual = float(amount) / float(usual) if amount is not None and usual else None
    return {**{name: value for name, value in row.items() if name != "age"}, "unusual": unusual}
