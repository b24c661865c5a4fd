"""Missing and unknown values mean the same in training, evaluation and serving, by every library
that `ml new` writes a model for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.repository.scaffold import new
from ml.repository.scaffold.libraries import LIBRARIES
from ml.repository.scaffold.profile import Choices, profile
from ml.serving.scoring.columns import Value
from ml.serving.scoring.messages import BadRequest
from ml.serving.scoring.table import Table
from ml.toolkit.training.model_folder import seal
from ml.toolkit.training.tabular import Tabular
from tests.repository.scaffold import tables

ROWS = 300
CATEGORIES = {"place": "abc", "kind": "uv"}
NAMES = ["amount", "count", "place", "kind"]
HEAD = {
    **{"task": "binary", "primary_metric": "auc", "target": "y", "positive": "yes", "id": "id"},
    **{"slices": ["kind"], "delimiter": ",", "header": True, "rows": [1, 10_000]},
}


def rows_of(seed: int, gaps: Mapping[str, float]) -> list[dict[str, Any]]:
    """A number and a category that decide, and such shares of missing values."""
    draw, rows = np.random.default_rng(seed), []
    for at in range(ROWS):
        amount, count = round(float(draw.normal(5)), 3), at % 7
        place, kind = (str(draw.choice([*of])) for of in CATEGORIES.values())
        score = amount - 6 + count / 3 + (place == "a") - (kind == "u") + draw.normal() / 2
        row = {"amount": amount, "count": count, "place": place, "kind": kind}
        missing = {name: "" for name, share in gaps.items() if draw.random() < share}
        rows.append({"id": f"r{at}", **row, **missing, "y": "yes" if score > 0 else "no"})
    return rows


def project(folder: Path, model: Any, encoding: Any, rows: Any, optional: Any) -> Tabular:
    """A project of these rows; the columns `optional` may have no value."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    types = dict(zip(NAMES, ("float", "integer", "category", "category"), strict=True))
    columns: list[dict[str, Any]] = [
        {"name": "id", "type": "id"},
        *({"name": name, "type": of, "optional": name in optional} for name, of in types.items()),
        {"name": "y", "type": "category"},
    ]
    schema = folder / "people.schema.yml"
    schema.write_text(yaml.safe_dump({**HEAD, "columns": columns}))
    return Tabular(schema, model, derived, encoding)


def derived(row: dict[str, Value]) -> dict[str, Value]:
    """The row with two quotients, of which one is None and one NaN where there is none."""
    amount, count = row["amount"], row["count"]
    is_there = isinstance(amount, float) and isinstance(count, int) and count != 0
    ratio = amount / count if is_there else None  # type: ignore[operator]
    return {**row, "ratio": ratio, "same": float("nan") if ratio is None else ratio}


@cache
def model_of(library: str, folder: Path) -> Any:
    """The model.py that `ml new` writes, with few trees and epochs."""
    table = profile(tables.churn(folder / "churn.csv"), Choices("Churn"))
    code: dict[str, Any] = {"__name__": library}
    exec(new._texts("churn", table, "", library)[Path("model.py")], code)
    code |= {"MOST_TREES": 30, "EPOCHS": 5}
    return SimpleNamespace(**code)


def asked(table: Table, *rows: list[Any]) -> list[float]:
    """The answers to requests with these rows."""
    body = {"input_data": {"columns": NAMES, "data": rows}}
    return table.predict(json.dumps(body))


# Columns that are optional, and the share of values that they lack: none, so few that no model
# learns from them, many.
OPTIONAL = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0.0, 0.02, 0.3]))
ROW: list[Any] = [5.2, 3, "b", "v"]


def with_value(name: str, value: object) -> list[Any]:
    """The row with another value in a column."""
    return [value if of == name else own for of, own in zip(NAMES, ROW, strict=True)]


@pytest.mark.parametrize("library", LIBRARIES)
@given(optional=OPTIONAL, seed=st.integers(0, 2**16))
@settings(max_examples=6)
def test_a_missing_value_means_the_same(
    library: str,
    tmp_path_factory: pytest.TempPathFactory,
    optional: dict[str, float],
    seed: int,
) -> None:
    """Where it is refused, and what is answered: to a missing and to an unknown value alike, and
    as to no category that training had.
    """
    folder = tmp_path_factory.mktemp("people")
    model = model_of(library, tmp_path_factory.getbasetemp())
    rows = rows_of(seed, optional)
    made = project(folder, model, LIBRARIES[library].encoding, rows, optional)
    dataset = made.read(folder)
    columns, fitted = made.fit(dataset, model.SETTINGS, seed=0)
    columns.save(folder / "model")
    model.save(fitted, folder / "model")
    seal(folder / "model", {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AZUREML_MODEL_DIR", str(folder / "model"))
        patch.delenv("MODEL_DIGEST", raising=False)
        table = Table.open(derived, model.load, model.predict)
    evaluated = made.scores(dataset, "test", columns, fitted)
    served = asked(table, *map(list, dataset.test.rows))
    np.testing.assert_allclose(served, evaluated, rtol=1e-6)
    for name in NAMES:
        values = CATEGORIES.get(name, "")
        missing: list[Any] = [None, *(("", " NA ") if values else ())]
        if name in optional:
            answers = asked(table, *(with_value(name, of) for of in missing))
        else:
            answers = []
            for value in missing:
                with pytest.raises(BadRequest, match="empty-value") as raised:
                    asked(table, ROW, with_value(name, value))
                assert raised.value.field == name
            project(folder, model, made.encoding, [{**rows[0], name: ""}, *rows[1:]], optional)
            with pytest.raises(SystemExit, match=f"empty-value(?s:.*){name} is empty"):
                made.read(folder)
        if values:
            answers += asked(table, with_value(name, "new"))
            known = asked(table, *(with_value(name, of) for of in values))
            if optional.get(name, 0) < 0.3 and min(known) < max(known):
                # Trees answer with a mean; what adds up its inputs answers without the category's.
                if made.encoding == "codes":
                    assert min(known) < answers[0] < max(known)
                else:
                    assert answers[0] not in known
        assert not answers or np.ptp(answers) < 1e-6
