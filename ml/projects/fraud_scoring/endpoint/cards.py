"""Look up the history of the cards of a request in the online store."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from ml.features.definition import read
from ml.features.online import look_up, open_store
from ml.projects.fraud_scoring.history import FEATURE_SET, history
from ml.serving.scoring.messages import BadRequest
from ml.serving.scoring.table import MOST_ROWS

KEYS = ("card", "made_at")


class Cards:
    """The latest features of each card, in an online store."""

    def __init__(self, store: str) -> None:
        """Open the online store at `store`: a Redis URL or a folder (see `open_store`)."""
        self._set = read(FEATURE_SET)
        self._online = open_store(self._set, store)

    def complete(self, table: dict[str, Any]) -> tuple[str, list[str]]:
        """Return a request body with history columns instead of `KEYS`, and a status per row.

        The status is `found`, `unknown` or `stale`; the last two get the history of a card without
        payments. Raises BadRequest for a row without a card or without a time with a zone. Raises
        FeatureError if the store is unreachable or was filled by another feature definition.
        """
        names, rows = table["columns"], table["data"]
        if not isinstance(rows, list) or len(rows) > MOST_ROWS:
            raise BadRequest("data", "not a list of rows", f"at most {MOST_ROWS} rows")
        others = [name for name in names if name not in KEYS]
        joined = [*history(0.0, {})]
        data: list[list[object]] = []
        statuses: list[str] = []
        for row in rows:
            if not isinstance(row, list) or len(row) != len(names):
                raise BadRequest("data", "a row of another length", f"{len(names)} values")
            values = dict(zip(names, row, strict=True))
            moment = _moment(values.get("made_at"))
            card = values["card"]
            if not isinstance(card, str) or not card:
                raise BadRequest("card", type(card).__name__, "text")
            answer = look_up(self._set, self._online, {"card": card}, moment)
            features: Any = answer.values
            columns = history(moment.timestamp(), features)
            data.append([*(values[name] for name in others), *(columns[name] for name in joined)])
            statuses.append(answer.status)
        return json.dumps({"input_data": {"columns": [*others, *joined], "data": data}}), statuses


def _moment(value: object) -> datetime:
    try:
        moment = datetime.fromisoformat(value)  # type: ignore[arg-type]
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        pass
    raise BadRequest("made_at", repr(value)[:40], "an ISO 8601 time with a zone")
