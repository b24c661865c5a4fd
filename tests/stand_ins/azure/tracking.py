"""MLflow's REST API of a workspace: the calls of MLflow's client about runs.

The LoggedModel API is missing (404), as experiments show.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ml.backends.local.tracking import reader
from ml.backends.runs import Run
from tests.stand_ins.azure.jobs import READING, Job, literals, parts
from tests.stand_ins.azure.server import Answer, Refusal, Request

_STATUSES = {
    **{"Queued": "SCHEDULED", "Preparing": "SCHEDULED", "Running": "RUNNING"},
    **{"Finalizing": "RUNNING", "Completed": "FINISHED", "Failed": "FAILED", "Canceled": "KILLED"},
}
_CONDITION = re.compile(r"(tags|attributes|params)\.[`\"]?([\w.]+)[`\"]?\s*=\s*['\"]([^'\"]*)['\"]")
# runs/search in MLflow's REST API: "Maximum number of runs desired. … The default is 1000".
_PAGE = 1000


@dataclass(frozen=True)
class Tracked:
    """A run with its id in the workspace: of a job, a trial or a step."""

    id: str
    job: Job
    run: Run | None = None
    parent: str = ""
    label: str = ""

    @property
    def status(self) -> str:
        """Return the status in Azure ML's terms."""
        return self.run.status if self.parent and self.run else self.job.status


def tracked(job: Job) -> Iterator[Tracked]:
    """Yield the run of a job, and those of its trials and steps."""
    run = job.run()
    if run is None:
        yield Tracked(job.name, job)
        return
    for part in parts(job.name, run):
        yield Tracked(part.id, job, part.run, part.parent, part.label)


def experiment_id(name: str) -> str:
    """Return an experiment's id: a GUID, as in Azure ML."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


@dataclass(frozen=True)
class Tracking:
    """Responds to `/mlflow/v…{workspace}/api/2.0/mlflow/CALL` with data of the jobs."""

    jobs: Callable[[], list[Job]]

    def answer(self, call: str, request: Request) -> Answer:
        """Return the response to a call; raise Refusal for unsupported ones."""
        given = {**request.query, **(request.body or {})}
        match call:
            case "runs/get":
                return Answer(200, {"run": _document(self._find(given["run_id"]))})
            case "runs/search":
                return Answer(200, self._search(given))
            case "metrics/get-history":
                return Answer(200, {"metrics": self._history(given["run_id"], given["metric_key"])})
            case "experiments/get-by-name":
                return Answer(200, {"experiment": self._experiment(given["experiment_name"])})
            case "experiments/search":
                names = dict.fromkeys(_experiment(job) for job in self.jobs())
                return Answer(200, {"experiments": [self._experiment(name) for name in names]})
        raise Refusal(404, "NotFound", f"there is no {call} here")

    def _all(self) -> Iterator[Tracked]:
        for job in self.jobs():
            yield from tracked(job)

    def _find(self, run: str) -> Tracked:
        for each in self._all():
            if each.id == run:
                return each
        raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"Run {run} was not found")

    def _experiment(self, name: str) -> dict[str, Any]:
        if name not in {_experiment(job) for job in self.jobs()}:
            raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"Experiment {name} was not found")
        return {"experiment_id": experiment_id(name), "name": name, "lifecycle_stage": "active"}

    def _search(self, given: Mapping[str, Any]) -> dict[str, Any]:
        conditions = _conditions(given.get("filter") or "")
        experiments = given.get("experiment_ids") or []
        start, size = int(given.get("page_token") or 0), int(given.get("max_results") or _PAGE)
        runs = [
            document
            for each in self._all()
            if experiment_id(_experiment(each.job)) in experiments
            and _holds(document := _document(each), conditions)
        ]
        runs.sort(key=lambda run: -run["info"]["start_time"])
        page: dict[str, Any] = {"runs": runs[start : start + size]}
        if start + size < len(runs):
            page["next_page_token"] = str(start + size)
        return page

    def _history(self, run: str, metric: str) -> list[dict[str, Any]]:
        local = self._find(run).run
        with READING:
            curve = reader.all_curves(local.id).get(metric, ()) if local else ()
        return [
            {"key": metric, "value": _number(value), "timestamp": 0, "step": step}
            for step, value in curve
        ]


def _experiment(job: Job) -> str:
    """Return a job's experiment. docs reference-yaml-job-command: by default, the SDK sends the
    name of the working directory.
    """
    return str(job.properties.get("experimentName") or "Default")


def _conditions(text: str) -> list[tuple[str, str, str]]:
    """Parse a filter such as `tags.x = 'a' and attributes.status = 'b'`; reject others."""
    found = [match.groups() for match in _CONDITION.finditer(text)]
    if text and not found:
        raise Refusal(400, "INVALID_PARAMETER_VALUE", f"the stand-in knows no filter {text!r}")
    return [(kind, key, value) for kind, key, value in found]


def _holds(document: Mapping[str, Any], conditions: list[tuple[str, str, str]]) -> bool:
    for kind, key, value in conditions:
        if kind == "attributes":
            values = {key: document["info"].get(key)}
        else:
            values = {pair["key"]: pair["value"] for pair in document["data"][kind]}
        if values.get(key) != value:
            return False
    return True


def _document(each: Tracked) -> dict[str, Any]:
    run, job, is_job = each.run, each.job, not each.parent
    metrics: Mapping[str, float] = {}
    if run is not None:
        with READING:
            metrics = reader.latest(run.id)
    # Only what a script or the sweep logged: a job's inputs are not parameters of its MLflow run.
    inputs = literals(job.properties)
    parameters = run.parameters.items() if run is not None and not is_job else ()
    experiment = experiment_id(_experiment(job))
    started = run.started if run else job.created
    tags = {"mlflow.runName": job.properties.get("displayName") or job.name}
    if not is_job:
        tags = {"mlflow.runName": each.label, "mlflow.parentRunId": each.parent}
    if run is not None and run.best and _is_search(each):
        # docs tutorial-automl: "best_child_run_id = …data.tags["automl_best_child_run_id"]".
        tags["automl_best_child_run_id"] = f"{each.id}_{run.best.rpartition('_')[2]}"
    return {
        "info": {
            "run_id": each.id,
            "run_uuid": each.id,
            "run_name": tags["mlflow.runName"],
            "experiment_id": experiment,
            "status": _STATUSES[each.status],
            "start_time": int(started * 1000),
            **({"end_time": int(run.ended * 1000)} if run and run.ended else {}),
            "lifecycle_stage": "active",
        },
        "data": {
            "metrics": [
                {"key": key, "value": _number(value), "timestamp": 0, "step": 0}
                for key, value in metrics.items()
            ],
            "params": [
                {"key": key, "value": str(value)} for key, value in parameters if key not in inputs
            ],
            "tags": [{"key": key, "value": value} for key, value in tags.items()],
        },
    }


def _is_search(each: Tracked) -> bool:
    """Return whether the run is of an AutoML job or step."""
    properties = each.job.properties
    step = (properties.get("jobs") or {}).get(each.label, {})
    return properties["jobType"] == "AutoML" if not each.parent else step.get("type") == "automl"


def _number(value: float) -> float | str:
    """Return NaN and infinities as strings, like Protocol Buffers' JSON format: protobuf.dev."""
    if math.isnan(value):
        return "NaN"
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
