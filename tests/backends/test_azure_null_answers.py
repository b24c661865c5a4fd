"""Null and empty answers of Azure Monitor and MLflow, logs that cannot be read, slow operations."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ODataV4Format

from ml.backends.azure import backend as module
from ml.backends.azure import resources
from ml.backends.azure.backend import AzureBackend
from ml.backends.azure.endpoints import AzureEndpoints
from ml.backends.azure.jobs import metrics_of, parameters_of, tags_of
from ml.backends.azure.model_registry import AzureRegistry
from ml.backends.azure.resources import CONTENT
from ml.backends.azure.runs import AzureRuns
from ml.backends.azure.traffic import AzureRouter
from ml.backends.azure.workspace import Workspace
from ml.backends.endpoints import Server
from ml.core.errors import UserError

COLUMNS = ("Ingested", "DeploymentName", "ResponseCode", "ModelStatusCode", "TotalDurationMs")


def answering(document: object) -> Workspace:
    """A workspace whose Azure Monitor gives one answer."""
    workspace = Workspace("s", "g", "w")
    response = SimpleNamespace(
        status_code=200,
        raise_for_status=lambda: None,
        json=lambda: document,
        request=SimpleNamespace(url="https://azure/query"),
    )
    client = SimpleNamespace(format_url=lambda path: path, send_request=lambda request: response)
    vars(workspace).update(_logs=client, _resource_manager=client, _data_plane=client)
    return workspace


@pytest.mark.parametrize(
    "document",
    [
        {"value": []},
        {"value": None},
        {"value": [{"timeseries": []}]},
        {"value": [{"timeseries": None}]},
        {"value": [{"timeseries": [{"data": None}]}]},
        {"value": [{"timeseries": [{"data": [{"timeStamp": "x", "average": None}]}]}]},
    ],
    ids=str,
)
def test_a_metric_without_values(document: object) -> None:
    assert answering(document).metric("onlineEndpoints/words", "memory", 0.0) == []


def test_a_metric_of_mlflow_without_a_value() -> None:
    metrics = [{"key": "loss", "value": None}, {"key": "auc", "value": 0.5}]
    assert metrics_of({"data": {"metrics": metrics}}) == {"auc": 0.5}


def test_values_without_their_key() -> None:
    """The service leaves out what it has no value for."""
    data = {
        "metrics": [{"key": "loss"}, {"value": 1.0}, {"key": "auc", "value": 0.5}],
        "params": [{"key": "seed"}, {"key": "rows", "value": "3"}],
        "tags": [{"key": "note"}, {"value": "x"}],
    }
    assert metrics_of({"data": data}) == {"auc": 0.5}
    assert parameters_of({"data": data}) == {"seed": "", "rows": 3}
    assert tags_of({"data": data}) == {"note": ""}
    runs = AzureRuns(answering({"metrics": [{"step": 1}, {"step": 2, "value": 0.5}]}))
    assert runs._curve(SimpleNamespace(id="a"), "loss") == ((2, 0.5),)


def test_runs_without_an_id_or_a_start_hide_no_others() -> None:
    """One that waits for a node has not started; the newest come first, as is asked for."""
    created = datetime(2026, 11, 28, tzinfo=UTC)
    job = SimpleNamespace(
        name="job",
        creation_context=SimpleNamespace(created_at=created),
        experiment_name="words",
    )
    later = int(created.timestamp() * 1000) + 1
    infos = [{}, None, {"run_id": "waits", "start_time": None}, {"run_id": "new", "start_time": 0}]
    listed = [{"info": info} for info in [*infos, {"run_id": "job", "start_time": later}]]
    workspace, asked = Workspace("s", "g", "w"), []

    def tracking(call: str, **values: Any) -> dict[str, Any]:
        if call != "runs/search":
            return {"experiment": {"experiment_id": "7"}}
        asked.append(values["order_by"])
        return {"runs": [{}, *listed]}

    vars(workspace)["tracking"] = tracking
    tracked, _ = AzureRuns(workspace)._tracked_with_children([job])
    assert [*tracked] == ["waits", "new", "job"] and asked == [["start_time DESC"]]


def test_metrics_that_may_not_be_read_are_no_verdict() -> None:
    """Memory is then not judged, and the missing role is named once."""
    workspace, said = Workspace("s", "g", "w"), list[str]()

    def metric(*words: object) -> Any:
        error = HttpResponseError("insufficient access")
        error.status_code = 403
        raise error

    vars(workspace)["metric"] = metric
    endpoints = AzureEndpoints(workspace, AzureRegistry(workspace))
    endpoints._say = said.append
    server = Server(Path("words/blue"), 0, 0)
    assert endpoints.resident(server) is endpoints.resident(server) is None
    (line,) = said
    assert "memory is not judged" in line and "infra doctor" in line


def rows(*values: tuple[object, ...]) -> dict[str, object]:
    return {"tables": [{"columns": [{"name": name} for name in COLUMNS], "rows": [*values]}]}


def router(workspace: Workspace, said: list[str]) -> AzureRouter:
    made = AzureRouter(workspace, "words", "https://score", said.append)
    made._asked -= 60
    return made


@pytest.mark.parametrize(
    "document", [{"tables": []}, {"tables": None}, {"tables": [{"columns": [], "rows": None}]}]
)
def test_a_log_without_rows(document: object) -> None:
    said = list[str]()
    assert router(answering(document), said).renew() == {"tallies": {}} and said == []


def test_null_columns_of_the_log() -> None:
    """A response of 200 is no error, though the log lacks its duration and the model's status."""
    answer = rows(
        ("2026-11-28T07:00:00Z", "blue", "200", None, None),
        ("2026-11-28T07:00:01Z", "blue", "502", None, 3.0),
        ("2026-11-28T07:00:02Z", "", "404", "", 1.0),
        (None, "blue", None, None, None),
    )
    (tally,) = router(answering(answer), []).renew()["tallies"].values()
    assert (tally["client"]["requests"], tally["client"]["errors"]) == (2, 1)


def test_a_log_without_some_columns() -> None:
    tables = [
        {"columns": [{"name": "DeploymentName"}, {"name": "ResponseCode"}], "rows": [["b", 200]]},
        {"columns": [{"name": "Ingested"}, {}], "rows": [["2026-11-28T07:00:00Z", 1]]},
        {"rows": [["b"]]},
        {},
    ]
    (tally,) = router(answering({"tables": tables}), []).renew()["tallies"].values()
    assert (tally["client"]["requests"], tally["client"]["errors"]) == (1, 0)


@pytest.mark.parametrize(
    ("status", "words"), [(403, "denied access"), (400, "rejected the request")]
)
def test_a_log_that_cannot_be_read_is_no_verdict(status: int, words: str) -> None:
    """It is named once, and samples go on being judged."""
    workspace, said = Workspace("s", "g", "w"), list[str]()

    def logs(query: str) -> Any:
        error = HttpResponseError("insufficient access")
        error.status_code = status
        raise error

    vars(workspace)["logs"] = logs
    made = router(workspace, said)
    assert made.renew() == {"tallies": {}}
    made._asked -= 60
    made.renew()
    (line,) = said
    assert "Log Analytics cannot be read" in line and words in line and "infra doctor" in line


@pytest.mark.parametrize("code", ["InternalServerError", "OutOfCapacity"])
def test_an_operation_is_begun_again(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What may pass by itself; another error of the service is raised at once."""
    monkeypatch.setattr("ml.backends.azure.endpoints.BUSY_POLL_S", 0.0)
    workspace = Workspace("s", "g", "w")
    endpoints = AzureEndpoints(workspace, AzureRegistry(workspace))
    vars(endpoints)["_check_lease"] = lambda name: None
    left = [code, code]

    def begin() -> Any:
        if not left:
            return SimpleNamespace(
                result=lambda: "done", wait=lambda seconds: None, done=lambda: True
            )
        error = HttpResponseError("the operation failed")
        error.error = SimpleNamespace(code=left.pop(), message="the operation failed")
        raise error

    assert endpoints._begun("words", begin)() == "done"
    left[:] = ["BadArgument"]
    with pytest.raises(HttpResponseError):
        endpoints._begun("words", begin)


@pytest.mark.parametrize(
    ("status", "error", "passes"),
    [
        (409, {"code": "Conflict", "message": "another operation is in progress"}, True),
        (
            409,
            {
                "code": "MissingSubscriptionRegistration",
                "message": "MissingSubscriptionRegistration",
            },
            False,
        ),
        (400, {"code": "BadRequest", "message": "see details"}, False),
        *(
            (400, {"code": "BadRequest", "message": "see details", **inside}, True)
            for inside in (
                {"details": [{"code": "Other"}, {"code": "OutOfCapacity", "message": "none"}]},
                {"details": [{"code": "Other", "details": [{"code": "InternalServerError"}]}]},
                {"innererror": {"code": "Other", "innererror": {"code": "OutOfCapacity"}}},
            )
        ),
    ],
)
def test_a_batch_deployment_is_put_again(
    status: int, error: dict[str, Any], passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its endpoint has another operation; the service may bury its own fault in details."""
    monkeypatch.setattr(resources, "BUSY_POLL_S", 0.0)
    failures = [1, 2]

    def put(entity: object) -> Any:
        if failures:
            failed = HttpResponseError(error["message"])
            failed.status_code, failed.error = status, ODataV4Format(error)
            failures.pop()
            raise failed
        return SimpleNamespace(result=lambda: "done", wait=lambda seconds: None, done=lambda: True)

    entity = SimpleNamespace(name="lengths", tags={CONTENT: "new"})
    made = resources.AzureResources(Workspace("s", "g", "w"), lambda name, watch: None)  # type: ignore[arg-type, return-value]
    if passes:
        assert made._put(entity, None, put) == "created" and failures == []
    else:
        with pytest.raises(HttpResponseError):
            made._put(entity, None, put)


def cancelling(monkeypatch: pytest.MonkeyPatch, conflicts: int, done: bool) -> AzureBackend:
    """A backend whose workspace tells so many conflicts, and then has cancelled or not."""
    monkeypatch.setattr(module, "CANCEL_POLL_S", 0.0)
    waiting = [409] * conflicts

    def begin(name: str) -> Any:
        if waiting:
            error = HttpResponseError("another operation is in progress")
            error.status_code = waiting.pop()
            raise error
        return SimpleNamespace(wait=lambda s: None, done=lambda: done, result=lambda: None)

    workspace = Workspace("s", "g", "w")
    vars(workspace)["client"] = SimpleNamespace(jobs=SimpleNamespace(begin_cancel=begin))
    backend = AzureBackend(workspace=workspace)
    run = SimpleNamespace(name="job-1", status="Running")
    vars(backend)["runs"] = SimpleNamespace(find=lambda name: run, parent=lambda run: None)
    return backend


def test_a_cancellation_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cancelling(monkeypatch, 3, done=True).cancel("job-1").name == "job-1"
    with pytest.raises(UserError, match="request-rejected"):
        cancelling(monkeypatch, 4, done=True).cancel("job-1")


def test_a_cancellation_is_waited_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="not-canceled") as refused:
        cancelling(monkeypatch, 0, done=False).cancel("job-1")
    assert refused.value.exit_code == 1 and "ml runs show job-1" in str(refused.value)
