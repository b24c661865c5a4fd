"""The endpoint: takes a table; returns one probability and one decision per row.

A request has all columns of the model. It may have `card` and `made_at` instead of the history
columns; the endpoint then looks the history up in the online feature store. The environment
variable SCORE_FEATURE_STORE names the store: a Redis URL or a folder.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import orjson

from ml.features.timeline import FeatureError
from ml.projects.fraud_scoring.columns import derive
from ml.projects.fraud_scoring.costs import threshold
from ml.projects.fraud_scoring.model import load, predict
from ml.serving.scoring.messages import BadRequest, read_json, refusal, unavailable
from ml.serving.scoring.model import FEATURE_STORE
from ml.serving.scoring.table import Table

if TYPE_CHECKING:
    from ml.projects.fraud_scoring.endpoint.cards import Cards

table: Table
cards: Cards | None = None


def init() -> None:
    """Verify and load the model. The first lookup connects to the feature store."""
    global table, cards
    table = Table.open(derive, load, predict)
    cards = None
    if store := os.environ.get(FEATURE_STORE):
        from ml.projects.fraud_scoring.endpoint.cards import Cards

        cards = Cards(store)


def run(body: str) -> object:
    """Return `predictions` and `decisions` (`review` or `accept`), one of each per row.

    If histories were looked up, the reply also has `history`: `found`, `unknown` or `stale` per
    row. Returns status 400 for an invalid table or an amount of 0 or less, and status 503 if the
    feature store fails.
    """
    looked_up: dict[str, object] = {}
    try:
        if cards is not None and (keyed := _keyed(body)):
            body, looked_up["history"] = cards.complete(keyed)
    except BadRequest as wrong:
        return refusal(wrong)
    except FeatureError as failed:
        return unavailable(failed.code, failed.message, failed.expected)
    answer = table.answer(body)
    if not isinstance(answer, dict):
        return answer
    data = orjson.loads(body)["input_data"]
    index = data["columns"].index("amount")
    amounts = [row[index] for row in data["data"]]
    for number, amount in enumerate(amounts, 1):
        if amount <= 0:
            error = BadRequest("amount", f"{amount} in row {number}", "an amount of more than 0")
            return refusal(error)
    decisions = [
        "accept" if score <= threshold(amount) else "review"
        for score, amount in zip(answer["predictions"], amounts, strict=True)
    ]
    return {**answer, "decisions": decisions, **looked_up}


def _keyed(body: str) -> dict[str, Any] | None:
    """Return the table of a request with a column `card`, else None.

    An invalid request also gives None, because `table.answer` reports it. Raises BadRequest if a
    JSON object repeats a key.
    """
    try:
        request: Any = read_json(body)
        data = request["input_data"]
        return data if "card" in data["columns"] else None
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
