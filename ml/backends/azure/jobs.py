"""Convert a job of the control plane and its MLflow run to the port's `Run` and `Entry`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ml.backends.azure.errors import as_user_errors
from ml.backends.azure.workspace import Workspace
from ml.backends.runs import Entry, Run, Status
from ml.core.errors import UserError
from ml.specs.plan import automl
from ml.specs.plan.bindings import promoted_to
from ml.specs.plan.plans import Value

# Status of Azure ML (azure-ai-ml's JobStatus) → status of the port.
_STATUSES: Mapping[str, Status] = {
    **dict.fromkeys(("NotStarted", "Queued", "Provisioning", "Preparing", "Starting"), "Queued"),
    **dict.fromkeys(("Running", "Finalizing", "CancelRequested"), "Running"),
    "NotResponding": "Failed",  # the node is lost; azure-ai-ml counts the job as ended
    **{"Completed": "Completed", "Failed": "Failed", "Canceled": "Canceled", "Paused": "Queued"},
}
# Status of MLflow → status of the port.
_TRACKED: Mapping[str, Status] = {
    **{"SCHEDULED": "Queued", "RUNNING": "Running", "FINISHED": "Completed"},
    **{"FAILED": "Failed", "KILLED": "Canceled"},
}
PARENT = "mlflow.parentRunId"
# The name of the best trial: a tag of an AutoML job's run (azureml-examples, "Retrieve the best
# trial": automl-standalone-jobs), and a property of a sweep (azure-ai-ml).
_BEST_FOUND, _BEST_SWEPT = "automl_best_child_run_id", "best_child_run_id"
# Job properties that this template sets; azure-ai-ml defines the names of git's.
SPEC, CODE = "gitops.spec", "gitops.code"
REPOSITORY, COMMIT, BRANCH, DIRTY = (
    "mlflow.source.git.repoURL",
    "mlflow.source.git.commit",
    "mlflow.source.git.branch",
    "azureml.git.dirty",
)
# Job kinds with child runs, and those whose child runs are trials.
COMPOSED = frozenset({"sweep", "pipeline", "automl"})
SEARCHES = frozenset({"sweep", "automl"})


# Parent run's id → the MLflow runs of its children.
Children = dict[str, list[Any]]


class Outputs(Mapping[str, Path]):
    """The outputs of a job by name, as local paths; the first access to one downloads it.

    `items()` and `values()` return the paths and download nothing.
    """

    def __init__(
        self, workspace: Workspace, job: str, types: Mapping[str, str], folder: Path
    ) -> None:
        self._workspace, self._job, self._types = workspace, job, types
        self._folder = folder

    def __getitem__(self, name: str) -> Path:
        if name not in self._types:
            raise KeyError(name)
        target = self._path(name)
        if not target.exists():
            self._download(name, target)
        return target

    def __iter__(self) -> Iterator[str]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)

    def items(self) -> Any:
        """Return (name, local path) of each output, downloaded or not."""
        return {name: self._path(name) for name in self._types}.items()

    def values(self) -> Any:
        """Return the local path of each output, downloaded or not."""
        return [self._path(name) for name in self._types]

    def _path(self, name: str) -> Path:
        return self._folder / "outputs" / name

    def _download(self, name: str, target: Path) -> None:
        """Download an output into a temporary folder, then move it, so no partial one is used."""
        unfinished = self._folder / "unfinished"
        try:
            with as_user_errors(), self._workspace.quiet():
                self._workspace.client.jobs.download(
                    self._job, download_path=unfinished, output_name=name
                )
        except UserError as refused:
            problem = refused.problems[0]
            actual = f"the output {name} of {self._job} cannot be downloaded: {problem.actual}"
            raise UserError(
                replace(problem, actual=actual), exit_code=refused.exit_code
            ) from refused
        target.parent.mkdir(parents=True, exist_ok=True)
        content = unfinished / "named-outputs" / name
        if content.is_dir() and self._types[name] == "uri_file":
            content = next((path for path in content.rglob("*") if path.is_file()), content)
        if content.exists():
            content.rename(target)


@dataclass(frozen=True)
class JobReader:
    """Converts jobs, with their MLflow runs and child runs, to `Run` objects."""

    workspace: Workspace

    def folder(self, job: str) -> Path:
        """Return the local folder for the logs and outputs of a job."""
        return self.workspace.folder / job

    def run(self, job: Any, tracked: Mapping[str, Any] | None, children: Children) -> Run:
        """Return the run of a job; `tracked` is its MLflow run (JSON), None if there is none."""
        info = tracked["info"] if tracked else {}
        status = status_of(job)
        run = Run(
            id=job.name,
            name=job.name,
            status=status,
            experiment=job.experiment_name or "",
            folder=self.folder(job.name),
            started=_seconds(info.get("start_time")) or job.creation_context.created_at.timestamp(),
            ended=_seconds(info.get("end_time")) if status not in ("Queued", "Running") else None,
            parameters={**_literals(job), **(parameters_of(tracked) if tracked else {})},
            metrics=metrics_of(tracked) if tracked else {},
            outputs=self._outputs(job, job.name) if status == "Completed" else {},
        )
        parts = children.get(job.name, ())
        if kind_of(job) in SEARCHES:
            best = job.properties.get(_BEST_SWEPT)
            if tracked and kind_of(job) == "automl":  # a sweep's user code may set this tag
                best = tags_of(tracked).get(_BEST_FOUND) or best
            return self._with_trials(run, job, parts, best)
        if kind_of(job) == "pipeline":
            steps = [self._step(run, job, part, children) for part in parts]
            return replace(run, steps=tuple(sorted(steps, key=lambda step: step.started)))
        return run

    def _outputs(self, job: Any, run: str) -> Outputs:
        # Every job has an output `default`, with its artifacts.
        types = {name: str(o.type) for name, o in (job.outputs or {}).items() if name != "default"}
        return Outputs(self.workspace, run, types, self.folder(run))

    def _with_trials(self, run: Run, job: Any, tracked: Iterable[Any], best_id: str | None) -> Run:
        """Return the search with its trials, and with metrics, parameters and outputs of the best.

        An AutoML job keeps its own outputs: Azure copies the best model there.
        """
        trials = sorted(
            (self._trial(run, job, child) for child in numbered(run, tracked)), key=number_of
        )
        best = next((t for t in trials if t.name == best_id), None)
        run = replace(run, trials=tuple(trials), best=best.name if best else None)
        if best is None:
            return run
        outputs = best.outputs if kind_of(job) == "sweep" else run.outputs
        return replace(run, metrics=best.metrics, parameters=best.parameters, outputs=outputs)

    def _part(self, run: Run, tracked: Mapping[str, Any]) -> Run:
        """Return a step or trial as a run, from its MLflow run alone."""
        info = tracked["info"]
        return Run(
            id=info["run_id"],
            name=info["run_id"],
            status=_TRACKED.get(info["status"], "Running"),
            experiment=run.experiment,
            folder=self.folder(info["run_id"]),
            started=_seconds(info.get("start_time")) or run.started,
            ended=_seconds(info.get("end_time")),
            parameters=parameters_of(tracked),
            metrics=metrics_of(tracked),
        )

    def _trial(self, sweep: Run, job: Any, tracked: Mapping[str, Any]) -> Run:
        run = self._part(sweep, tracked)
        run = replace(run, parameters={**_literals(job), **run.parameters})
        if run.status == "Completed" and kind_of(job) == "sweep":
            return replace(run, outputs=self._outputs(job, run.id))
        # The policy canceled the trial, because the sweep itself was not canceled.
        stopped = run.status == "Canceled" and sweep.status != "Canceled"
        early = getattr(job, "early_termination", None)
        return replace(run, ended_by=early.type) if early and stopped else run

    def _step(self, pipeline: Run, job: Any, tracked: Mapping[str, Any], children: Children) -> Run:
        """Return a step of a pipeline, named `PIPELINE.STEP`; Azure names it by a GUID.

        The trials of a sweep or AutoML step are ranked by the step's objective.
        """
        label = label_of(tracked)
        run, node = self._part(pipeline, tracked), job.jobs.get(label)
        run = replace(run, name=f"{pipeline.name}.{label}")
        outputs = (node.outputs if node else {}).items()
        types = {name: str(getattr(_written(o), "type", None) or o.type) for name, o in outputs}
        if run.status == "Completed":
            run = replace(run, outputs=Outputs(self.workspace, run.id, types, run.folder))
        if node is None or kind_of(node) not in SEARCHES:
            return run
        return self._with_ranked_trials(run, node, children.get(run.id, ()))

    def _with_ranked_trials(self, run: Run, node: Any, tracked: Iterable[Any]) -> Run:
        """Return a sweep or AutoML step with its trials and the metrics of the best one.

        The best is computed here, since the control plane does not return it for a step.
        """
        trials = []
        for child in sorted(
            numbered(run, tracked), key=lambda child: _order(child["info"]["run_id"])
        ):
            trial = self._trial(run, node, child)
            trials.append(replace(trial, name=f"{run.name}_{_order(trial.id)}"))
        objective = objective_of(node)
        metric, sign = objective["primary_metric"], -1 if objective["goal"] == "maximize" else 1
        completed = [t for t in trials if t.status == "Completed" and metric in t.metrics]
        best = min(completed, key=lambda trial: sign * trial.metrics[metric], default=None)
        run = replace(run, trials=tuple(trials), best=best.name if best else None)
        return replace(run, metrics=best.metrics, parameters=best.parameters) if best else run

    def entry(self, job: Any, run: Run) -> Entry:
        """Return the run with its kind and the lineage in the job's fields and properties."""
        properties, kind = job.properties or {}, kind_of(job)
        task = job.trial if kind == "sweep" else job
        lineage: dict[str, Any] = {
            "display_name": job.display_name or "",
            "tags": dict(job.tags or {}),
            "spec": properties.get(SPEC, ""),
            "code": {
                "commit": properties.get(COMMIT, ""),
                "branch": properties.get(BRANCH, ""),
                "dirty": properties.get(DIRTY) == "True" or not properties.get(COMMIT),
                "digest": properties.get(CODE, ""),
            },
            "data": {
                name: {"asset": data.path, "source": data.path, "digest": ""}
                for name, data in _inputs(job)
                if not isinstance(data, str | int | float)
            },
            "compute": job.compute or "",
            "environment": short(str(getattr(task, "environment", "") or "")),
            "environment_digest": "",
            "studio": studio(job),
            "parent": None,
        }
        if kind in SEARCHES:
            lineage["objective"] = objective_of(job)
        return Entry(run, kind, lineage)


def status_of(job: Any) -> Status:
    """Return the port's status of a job of the control plane; Running if unknown."""
    return _STATUSES.get(str(getattr(job.status, "value", job.status)), "Running")


def studio(job: Any) -> str:
    """Return the URL of the job's page in Azure ML studio; "" if there is none."""
    return str(getattr(job, "studio_url", "") or "")


def task_of(step: Any) -> Any:
    """Return the component that a pipeline step runs, or its reference; None for AutoML."""
    # `hasattr` does not help: nodes of azure-ai-ml return a value for any attribute.
    if step.type == "automl":
        return None
    return step.trial if step.type == "sweep" else step.component


def promoted(step: Any) -> set[str]:
    """Return the names of the pipeline's outputs that a step's outputs are bound to."""
    outputs = (step.outputs or {}).values() if step is not None else ()
    written = map(_written, outputs)
    return {promoted_to(getattr(output, "path", output)) for output in written}


def short(environment: str) -> str:
    """Shorten an environment's ARM ID to `azureml:NAME:VERSION`; return other text unchanged."""
    return re.sub(r"^/subscriptions/.*/environments/([^/]+)/versions/", r"azureml:\1:", environment)


def objective_of(search: Any) -> dict[str, str]:
    """Return `primary_metric` and `goal` (maximize, minimize) of a sweep or an AutoML job."""
    if kind_of(search) == "automl":
        metric = automl.snake(getattr(search.primary_metric, "value", search.primary_metric))
        return {"primary_metric": automl.logged(metric), "goal": automl.goal(metric)}
    goal = str(getattr(search.objective.goal, "value", search.objective.goal)).lower()
    return {"primary_metric": search.objective.primary_metric, "goal": goal}


def kind_of(job: Any) -> str:
    """Return the job's type in lower case: `command` (the default), `sweep`, `pipeline` …"""
    return str(job.type or "command").lower()


def numbered(parent: Run, tracked: Iterable[Any]) -> list[Any]:
    """Return the child runs that are trials; AutoML also has set-up and explanation runs."""
    pattern = re.compile(re.escape(parent.id) + r"_\d+")
    return [entry for entry in tracked if pattern.fullmatch(entry["info"]["run_id"])]


def number_of(trial: Run) -> int:
    """Return the number of a trial in its sweep."""
    return _order(trial.name)


def _order(trial: str) -> int:
    """Return the number at the end of a trial's name: 3 for `sweep_3`."""
    return int(trial.rpartition("_")[2])


def label_of(tracked: Mapping[str, Any]) -> str:
    """Return a step's name in its pipeline: MLflow's run name; "" without one."""
    return tags_of(tracked).get("mlflow.runName", "")


def _seconds(milliseconds: object) -> float | None:
    return float(str(milliseconds)) / 1000 if milliseconds else None


def _literals(job: Any) -> dict[str, Value]:
    """Return the literal inputs, converted from Azure ML's text to numbers where possible."""
    inputs = _inputs(job)
    return {name: _value(text) for name, text in inputs if isinstance(text, str | int | float)}


def _inputs(job: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of a job's inputs; a value is a data input or a literal."""
    if kind_of(job) == "automl":
        yield from ((name, getattr(job, name)) for name in automl.DATA if getattr(job, name, None))
        return
    for name, data in (job.inputs or {}).items():
        yield name, _written(data)


def _written(port: Any) -> Any:
    """Return the value of an input or output.

    azure-ai-ml has no public access: an input's `path` raises ValidationException for a literal.
    """
    return getattr(port, "_data", port)


def _value(text: object) -> Value:
    """Parse a literal: int, else float, else text."""
    for kind in (int, float):
        try:
            return kind(str(text))
        except ValueError:
            continue
    return str(text)


def metrics_of(tracked: Mapping[str, Any]) -> dict[str, float]:
    """Return the last value of each metric of an MLflow run."""
    data = tracked.get("data") or {}
    metrics = data.get("metrics") or ()
    return {
        metric["key"]: float(metric["value"])
        for metric in metrics
        if "key" in metric and metric.get("value") is not None
    }


def parameters_of(tracked: Mapping[str, Any]) -> dict[str, Value]:
    """Return the parameters of an MLflow run, parsed; "" for one without a value."""
    return {name: _value(text) for name, text in _texts(tracked, "params").items()}


def tags_of(tracked: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of an MLflow run."""
    return _texts(tracked, "tags")


def _texts(tracked: Mapping[str, Any], part: str) -> dict[str, str]:
    listed = (tracked.get("data") or {}).get(part) or ()
    return {pair["key"]: pair.get("value") or "" for pair in listed if "key" in pair}
