"""The endpoint: a table in, one probability and one decision a row out."""

from __future__ import annotations

import orjson

from ml.projects.fraud_scoring.columns import derive
from ml.projects.fraud_scoring.costs import threshold
from ml.projects.fraud_scoring.model import load, predict
from ml.serving.scoring.table import Table

table: Table


def init() -> None:
    """Verify the model's files, then load it."""
    global table
    table = Table.open(derive, load, predict)


def run(body: str) -> object:
    """The predictions, and for each `review` or `accept`; status 400 with a sentence for a request
    that is not such a table. An amount that is missing is reviewed.
    """
    answer = table.answer(body)
    if not isinstance(answer, dict):
        return answer
    asked = orjson.loads(body)["input_data"]
    at = asked["columns"].index("amount")
    decisions = [
        "accept" if row[at] is not None and score <= threshold(row[at]) else "review"
        for score, row in zip(answer["predictions"], asked["data"], strict=True)
    ]
    return {**answer, "decisions": decisions}
