"""The endpoint: a table in, one probability and one decision a row out."""

from __future__ import annotations

import orjson

from ml.projects.fraud_scoring.columns import derive
from ml.projects.fraud_scoring.costs import threshold
from ml.projects.fraud_scoring.model import load, predict
from ml.serving.scoring.messages import BadRequest, refusal
from ml.serving.scoring.table import Table

table: Table


def init() -> None:
    """Verify the model's files, then load it."""
    global table
    table = Table.open(derive, load, predict)


def run(body: str) -> object:
    """The predictions, and for each `review` or `accept`; status 400 with a sentence for a request
    that is not such a table, or has an amount of 0 or less.
    """
    answer = table.answer(body)
    if not isinstance(answer, dict):
        return answer
    asked = orjson.loads(body)["input_data"]
    at = asked["columns"].index("amount")
    amounts = [row[at] for row in asked["data"]]
    for number, amount in enumerate(amounts, 1):
        if amount <= 0:
            error = BadRequest("amount", f"{amount} in row {number}", "an amount of more than 0")
            return refusal(error)
    decisions = [
        "accept" if score <= threshold(amount) else "review"
        for score, amount in zip(answer["predictions"], amounts, strict=True)
    ]
    return {**answer, "decisions": decisions}
