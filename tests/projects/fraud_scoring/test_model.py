"""The model of fraud-scoring: what is saved is what is served."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ml.backends.endpoints import ModelDeployment
from ml.backends.local.serving import processes, server
from ml.features.definition import read
from ml.features.materialize import materialize
from ml.features.training_set import training_set
from ml.projects.fraud_scoring import model
from ml.projects.fraud_scoring.columns import derive
from ml.projects.fraud_scoring.endpoint import score
from ml.projects.fraud_scoring.history import FEATURE_SET, history
from ml.projects.fraud_scoring.train import PROJECT, SCHEMA
from ml.release.serving import read as read_spec
from ml.release.serving import snapshot
from ml.serving.scoring.columns import Columns
from ml.serving.scoring.manifest import folder_digest
from ml.serving.scoring.model import FEATURE_STORE
from ml.toolkit.training.model_folder import seal

DATA = SCHEMA.parent / "card_payments"
REQUESTS = Path(score.__file__).with_name("requests.jsonl")


def test_what_is_saved_is_what_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model that was fitted, the one that is loaded and the endpoint give the same answers."""
    dataset = PROJECT.read(SCHEMA.parent / "fraud_scoring")
    columns, fitted = PROJECT.fit(dataset, {**model.SETTINGS, "trees": 20}, seed=0)
    columns.save(tmp_path)
    model.save(fitted, tmp_path)
    digest = seal(tmp_path, {})
    rows = [list(row) for row in dataset.test.rows[:500]]
    expected = PROJECT.scores(dataset, "test", columns, fitted)[:500]
    columns = Columns.load(tmp_path, derive)
    loaded = PROJECT.scores(dataset, "test", columns, model.load(tmp_path))[:500]
    assert np.allclose(loaded, expected, rtol=0, atol=1e-9)
    monkeypatch.setenv("AZUREML_MODEL_DIR", str(tmp_path))
    monkeypatch.delenv("MODEL_DIGEST", raising=False)
    score.init()
    request = json.loads(REQUESTS.read_text(encoding="utf-8").partition("\n")[0])
    names = request["input_data"]["columns"]
    answer = score.run(json.dumps({"input_data": {"columns": names, "data": rows}}))
    assert isinstance(answer, dict) and answer["model_digest"] == digest
    assert np.array_equal(answer.get("probabilities", answer["predictions"]), loaded)


@pytest.fixture(scope="module", name="store")
def _store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A feature store with the payments of data/."""
    store = tmp_path_factory.mktemp("store")
    definition = read(FEATURE_SET)
    assert definition.local_source is not None
    materialize(definition, definition.local_source, store)
    return store


@pytest.fixture(name="served")
def _served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Path) -> Path:
    """The endpoint with a small model and the store; the folder of the model."""
    data = SCHEMA.parent / "fraud_scoring"
    rows = data.joinpath("table.csv").read_text().splitlines(keepends=True)
    small = tmp_path / "table.csv"
    small.write_text("".join(rows[:4001]))
    dataset = PROJECT.read(tmp_path)
    columns, fitted = PROJECT.fit(dataset, {**model.SETTINGS, "trees": 20}, seed=0)
    folder = tmp_path / "model"
    folder.mkdir()
    columns.save(folder)
    model.save(fitted, folder)
    seal(folder, {})
    monkeypatch.setenv("AZUREML_MODEL_DIR", str(folder))
    monkeypatch.delenv("MODEL_DIGEST", raising=False)
    monkeypatch.setenv(FEATURE_STORE, str(store))
    return folder


def request(*rows: list[object], columns: tuple[str, ...] = ()) -> str:
    """A request with a card and a time a row, and the other columns of a transaction."""
    names = ["card", "made_at", *columns]
    others = {"age": "60+", "merchant": "m18", "category": "games", "channel": "online"}
    others |= {"abroad": 0, "hour": 12, "amount": 900.0}  # type: ignore[dict-item]
    data = [[*row, *others.values()] for row in rows]
    return json.dumps({"input_data": {"columns": [*names, *others], "data": data}})


def test_the_endpoint_looks_the_history_up(served: Path) -> None:
    """A known card's answer is that to the columns that a training join gives; an unknown card and
    stale values are answered as a card without payments.
    """
    score.init()
    definition, payments = read(FEATURE_SET), pl.read_parquet(DATA / "payments.parquet")
    moment = payments["arrival"].max() + timedelta(minutes=1)  # type: ignore[operator]
    late, text = moment + timedelta(days=90), moment.isoformat()
    answer = score.run(request(["c0001", text], ["nobody", text], ["c0001", late.isoformat()]))
    assert isinstance(answer, dict)
    assert answer["history"] == ["found", "unknown", "stale"]
    labels = pl.DataFrame({"card": ["c0001", "nobody"], "at": [moment, moment]})
    joined = training_set(labels, [definition], time="at").table
    for number, row in enumerate(joined.select(*definition.features).iter_rows(named=True)):
        document = json.loads(request(["c0001", text]))["input_data"]
        known = history(moment.timestamp(), row)
        columns = [*document["columns"][2:], *known]
        data = [[*document["data"][0][2:], *known.values()]]
        given = score.run(json.dumps({"input_data": {"columns": columns, "data": data}}))
        assert isinstance(given, dict) and "history" not in given
        assert given["predictions"][0] == answer["predictions"][number]
    assert answer["predictions"][1] == answer["predictions"][2] != answer["predictions"][0]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (["c0001", "2025-06-01T12:00:00"], "made_at: '2025-06-01T12:00:00'"),
        (["c0001", 3], "made_at: 3"),
        (["", "2025-06-01T12:00:00Z"], "card: str"),
        ([7, "2025-06-01T12:00:00Z"], "card: int"),
        (["c0001"], "data: a row of another length"),
    ],
)
def test_a_row_without_a_card_or_a_time_is_refused(
    served: Path, row: list[object], told: str
) -> None:
    """Status 400 with the field and what is expected."""
    score.init()
    refused = score.run(request(row))
    assert getattr(refused, "status_code", 200) == 400
    assert json.loads(getattr(refused, "data", ""))["error"]["message"].startswith(told)


def test_a_key_that_is_given_twice_is_refused(served: Path) -> None:
    """Also where the history is looked up: the lookup would take the last."""
    score.init()
    body = request(["c0001", "2025-06-01T12:00:00Z"])
    refused = score.run(body.replace('"data": ', '"data": [], "data": '))
    assert getattr(refused, "status_code", 200) == 400
    assert b"data: given twice" in getattr(refused, "data", b"")


def test_without_a_store_nothing_is_looked_up(
    served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns of the history are required; a store without the feature set is status 503, and
    a request that has the columns is answered.
    """
    monkeypatch.setenv(FEATURE_STORE, str(tmp_path / "none"))
    score.init()
    failed = score.run(request(["c0001", "2025-06-01T12:00:00Z"]))
    assert getattr(failed, "status_code", 200) == 503
    assert json.loads(getattr(failed, "data", ""))["error"]["code"] == "not-materialized"
    complete = REQUESTS.read_text(encoding="utf-8").partition("\n")[0]
    assert isinstance(score.run(complete), dict)
    monkeypatch.delenv(FEATURE_STORE)
    score.init()
    refused = score.run(request(["c0001", "2025-06-01T12:00:00Z"]))
    assert getattr(refused, "status_code", 200) == 400


@pytest.mark.slow
def test_the_sandboxed_server_looks_the_history_up(
    served: Path, own_home: Path, tmp_path: Path
) -> None:
    """In the store of this machine, which it reads and cannot write; without one, status 503.

    What is materialised while it serves is found without a restart.
    """
    spec = snapshot(read_spec(SCHEMA.parents[1] / "endpoint"))
    deployment = ModelDeployment(
        endpoint=spec.endpoint_name,
        model=spec.endpoint_name,
        version="1",
        digest=folder_digest(served),
        code=spec.code,
        scoring_script=spec.scoring_script,
        model_folder=served,
        environment_variables=spec.environment_variables,
        server=spec.server,
    )
    slot, definition = tmp_path / "slot", read(FEATURE_SET)
    assert definition.local_source is not None
    moment = pl.read_parquet(DATA / "payments.parquet")["arrival"].max()
    body = json.loads(request(["c0001", moment.isoformat()], ["nobody", moment.isoformat()]))  # type: ignore[union-attr]
    try:
        running = server.start(slot, deployment)
        missing = server.score(running.port, body)
        assert missing.status == 503 and isinstance(missing.body, dict)
        assert missing.body["error"]["code"] == "not-materialized"
        materialize(definition, definition.local_source, own_home / "features")
        answer = server.score(running.port, body)
    finally:
        processes.stop(slot)
    assert answer.status == 200 and isinstance(answer.body, dict)
    assert answer.body["history"] == ["found", "unknown"]
    score.init()
    here = score.run(json.dumps(body))
    assert isinstance(here, dict) and here["predictions"] == answer.body["predictions"]
