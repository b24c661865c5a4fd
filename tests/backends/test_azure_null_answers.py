"""Null and empty answers of Azure Monitor and MLflow, logs that cannot be read, slow operations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError

from ml.backends.azure import backend as module
from ml.backends.azure.backend import AzureBackend
from ml.backends.azure.endpoints import AzureEndpoints
from ml.backends.azure.jobs import metrics_of
from ml.backends.azure.model_registry import AzureRegistry
from ml.backends.azure.traffic import AzureRouter
from ml.backends.azure.workspace import Workspace
from ml.core.errors import Refused

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
    vars(workspace).update(_logs=client, _resource_manager=client)
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
    assert (tally["callers"]["requests"], tally["callers"]["errors"]) == (2, 1)


@pytest.mark.parametrize(("status", "words"), [(403, "denied access"), (400, "rejected it")])
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
    with pytest.raises(Refused, match="request-rejected"):
        cancelling(monkeypatch, 4, done=True).cancel("job-1")


def test_a_cancellation_is_waited_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="not-canceled") as refused:
        cancelling(monkeypatch, 0, done=False).cancel("job-1")
    assert refused.value.exit_code == 1 and "ml runs show job-1" in str(refused.value)
