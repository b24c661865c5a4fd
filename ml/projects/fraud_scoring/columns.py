"""Convert a row of the table to the model's input.

Training, evaluation and the endpoint share this code, which prevents training-serving skew.
"""

from __future__ import annotations

from ml.serving.scoring.columns import Encoding, Row

# `codes`: one integer column per categorical column; `one-hot`: one 0/1 column per category.
ENCODING: Encoding = "codes"


def derive(row: Row) -> Row:
    """Return the row plus `unusual` (amount ÷ the card's usual amount, or None) without `age`.

    `age` is only for fairness metrics; the model must not use it.
    """
    amount, usual = row["amount"], row["usual_amount"]
    unusual = float(amount) / float(usual) if amount is not None and usual else None
    return {**{name: value for name, value in row.items() if name != "age"}, "unusual": unusual}
