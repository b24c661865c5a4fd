"""A job of the control plane and its MLflow run, as the `Run` and the `Entry` of the port."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ml.backends.azure.errors import as_refusals
from ml.backends.azure.workspace import Workspace
from ml.backends.runs import Entry, Run, Status
from ml.core.errors import UserError
from ml.specs.plan import automl
from ml.specs.plan.bindings import promoted_to
from ml.specs.plan.plans import Value

# Azure ML's statuses (azure-ai-ml's JobStatus) by what they are here.
_STATUSES: Mapping[str, Status] = {
    **dict.fromkeys(("NotStarted", "Queued", "Provisioning", "Preparing", "Starting"), "Queued"),
    **dict.fromkeys(("Running", "Finalizing", "CancelRequested"), "Running"),
    "NotResponding": "Failed",  # its node is gone: azure-ai-ml counts it as ended
    **{"Completed": "Completed", "Failed": "Failed", "Canceled": "Canceled", "Paused": "Queued"},
}
# MLflow's.
_TRACKED: Mapping[str, Status] = {
    **{"SCHEDULED": "Queued", "RUNNING": "Running", "FINISHED": "Completed"},
    **{"FAILED": "Failed", "KILLED": "Canceled"},
}
PARENT = "mlflow.parentRunId"
# The tag of an AutoML job's own run that names its best trial (azureml-examples, "Retrieve the best
# trial": automl-standalone-jobs), and the property of a sweep that does (azure-ai-ml).
_BEST_FOUND, _BEST_SWEPT = "automl_best_child_run_id", "best_child_run_id"
# Properties of a job that this template sets, those of git by the names of azure-ai-ml.
SPEC, CODE = "gitops.spec", "gitops.code"
REPOSITORY, COMMIT, BRANCH, DIRTY = (
    "mlflow.source.git.repoURL",
    "mlflow.source.git.commit",
    "mlflow.source.git.branch",
    "azureml.git.dirty",
)
# Kinds of jobs that have parts, and those whose parts are trials.
COMPOSED = frozenset({"sweep", "pipeline", "automl"})
SEARCHES = frozenset({"sweep", "automl"})


# MLflow's runs by the id of their parent.
Children = dict[str, list[Any]]


class Outputs(Mapping[str, Path]):
    """The outputs of a job by name, as local paths; asking for one downloads it the first time.

    `items()` and `values()` name the paths and download nothing.
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
        """Return the names and the paths where they are or would be."""
        return {name: self._path(name) for name in self._types}.items()

    def values(self) -> Any:
        """Return the paths where they are or would be."""
        return [self._path(name) for name in self._types]

    def _path(self, name: str) -> Path:
        return self._folder / "outputs" / name

    def _download(self, name: str, target: Path) -> None:
        """Download an output into a temporary folder, then move it: a partial one is never used."""
        unfinished = self._folder / "unfinished"
        try:
            with as_refusals(), self._workspace.quiet():
                self._workspace.client.jobs.download(
                    self._job, download_path=unfinished, output_name=name
                )
        except UserError as refused:
            problem = refused.problems[0]
            actual = f"the output {name} of {self._job} cannot be brought here: {problem.actual}"
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
    """Converts jobs, with their MLflow runs and their parts, to `Run` objects."""

    workspace: Workspace

    def folder(self, job: str) -> Path:
        """Return the local folder for the logs and outputs of a job."""
        return self.workspace.folder / job

    def run(self, job: Any, tracked: Mapping[str, Any] | None, children: Children) -> Run:
        """The run of a job; `tracked` is its MLflow run, `children` are those of its parts."""
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
            if tracked and kind_of(job) == "automl":  # of a sweep its author may have written it
                best = tags_of(tracked).get(_BEST_FOUND) or best
            return self._with_trials(run, job, parts, best)
        if kind_of(job) == "pipeline":
            steps = [self._step(run, job, part, children) for part in parts]
            return replace(run, steps=tuple(sorted(steps, key=lambda step: step.started)))
        return run

    def _outputs(self, job: Any, run: str) -> Outputs:
        # `default` is the artifacts that every job has.
        types = {name: str(o.type) for name, o in (job.outputs or {}).items() if name != "default"}
        return Outputs(self.workspace, run, types, self.folder(run))

    def _with_trials(self, run: Run, job: Any, tracked: Iterable[Any], best_id: str | None) -> Run:
        """Return the sweep with its trials; outputs, metrics and parameters are those of the best
        one.

        An AutoML job has outputs of its own: the best model is copied there.
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
        """Return a step or trial of a run, as far as its MLflow run describes it."""
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
        # A trial that was cancelled while its sweep went on was ended by the sweep's policy.
        stopped = run.status == "Canceled" and sweep.status != "Canceled"
        early = getattr(job, "early_termination", None)
        return replace(run, ended_by=early.type) if early and stopped else run

    def _step(self, pipeline: Run, job: Any, tracked: Mapping[str, Any], children: Children) -> Run:
        """Return a step of a pipeline, which has a GUID on Azure and the pipeline's and its own
        name here.

        Its trials are ranked as its own objective says.
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
        """Return a pipeline's sweep with its trials and the best one.

        The best is computed here: no job of the control plane names it.
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
        """Return the run with the lineage that its job states."""
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
    """Return the status of a job of the control plane."""
    return _STATUSES.get(str(getattr(job.status, "value", job.status)), "Running")


def studio(job: Any) -> str:
    """Return the address of the job's page in Azure ML's studio."""
    return str(getattr(job, "studio_url", "") or "")


def task_of(step: Any) -> Any:
    """The component that a step of a pipeline runs, or a reference to it; None for AutoML."""
    # By the type: a node of azure-ai-ml has any attribute that one asks for.
    if step.type == "automl":
        return None
    return step.trial if step.type == "sweep" else step.component


def promoted(step: Any) -> set[str]:
    """Return the outputs of the pipeline to which a step's outputs are bound."""
    outputs = (step.outputs or {}).values() if step is not None else ()
    written = map(_written, outputs)
    return {promoted_to(getattr(output, "path", output)) for output in written}


def short(environment: str) -> str:
    """`azureml:name:version` of an ARM id; another reference as it is."""
    return re.sub(r"^/subscriptions/.*/environments/([^/]+)/versions/", r"azureml:\1:", environment)


def objective_of(search: Any) -> dict[str, str]:
    """Return the metric and goal of a sweep or an AutoML job."""
    if kind_of(search) == "automl":
        metric = automl.snake(getattr(search.primary_metric, "value", search.primary_metric))
        return {"primary_metric": automl.logged(metric), "goal": automl.goal(metric)}
    goal = str(getattr(search.objective.goal, "value", search.objective.goal)).lower()
    return {"primary_metric": search.objective.primary_metric, "goal": goal}


def kind_of(job: Any) -> str:
    """`command`, `sweep`, `pipeline`, `automl` …"""
    return str(job.type or "command").lower()


def numbered(parent: Run, tracked: Iterable[Any]) -> list[Any]:
    """The trials among the parts of a search: AutoML also has runs that set up and explain."""
    pattern = re.compile(re.escape(parent.id) + r"_\d+")
    return [entry for entry in tracked if pattern.fullmatch(entry["info"]["run_id"])]


def number_of(trial: Run) -> int:
    """Return the number of a trial in its sweep."""
    return _order(trial.name)


def _order(trial: str) -> int:
    """Return the number of a trial, with which its name ends."""
    return int(trial.rpartition("_")[2])


def label_of(tracked: Mapping[str, Any]) -> str:
    """Return the name of a step in its pipeline, which is its run's name."""
    return tags_of(tracked).get("mlflow.runName", "")


def _seconds(milliseconds: object) -> float | None:
    return float(str(milliseconds)) / 1000 if milliseconds else None


def _literals(job: Any) -> dict[str, Value]:
    """Return the inputs that are values; Azure ML keeps them as text."""
    inputs = _inputs(job)
    return {name: _value(text) for name, text in inputs if isinstance(text, str | int | float)}


def _inputs(job: Any) -> Iterator[tuple[str, Any]]:
    """Yield the inputs of a job: data or literals."""
    if kind_of(job) == "automl":
        yield from ((name, getattr(job, name)) for name in automl.DATA if getattr(job, name, None))
        return
    for name, data in (job.inputs or {}).items():
        yield name, _written(data)


def _written(port: Any) -> Any:
    """Return the value of an input or output; azure-ai-ml has no public access to a literal.

    The `path` of an input raises ValidationException for one.
    """
    return getattr(port, "_data", port)


def _value(text: object) -> Value:
    """`0.1` is a number, as in the spec."""
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
    """Return the parameters of an MLflow run; one without a value is ""."""
    return {name: _value(text) for name, text in _texts(tracked, "params").items()}


def tags_of(tracked: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of an MLflow run."""
    return _texts(tracked, "tags")


def _texts(tracked: Mapping[str, Any], part: str) -> dict[str, str]:
    listed = (tracked.get("data") or {}).get(part) or ()
    return {pair["key"]: pair.get("value") or "" for pair in listed if "key" in pair}
