"""The runs of a workspace, as the port `RunStore` offers them.

Jobs come from the control plane; times, metrics and trials from MLflow tracking, whose run of a job
has the job's name. A list takes one request a page of each, however many runs there are.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from ml.backends.azure.assets import CONTENT
from ml.backends.azure.errors import as_refusals, explain_job
from ml.backends.azure.workspace import Workspace
from ml.backends.runs import OPEN, Curve, Entry, LineageNode, Run, Status, TrackingUnavailable
from ml.core import home
from ml.core.errors import Problem, Refused
from ml.specs.plan import automl
from ml.specs.plan.plan import Sample, Value

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
# Properties of a job that this template sets, and those that azure-ai-ml takes from git.
SPEC, CODE = "gitops.spec", "gitops.code"
_COMMIT, _BRANCH, _DIRTY = (
    "mlflow.source.git.commit",
    "mlflow.source.git.branch",
    "azureml.git.dirty",
)
_LOGS = "logs"
_BUILD = "image_build"
# A data asset, as azure-ai-ml shortens it or by its ARM id.
_DATA = re.compile(r"(?:^(?:azureml:)?|/data/)([\w.-]+)(?::|/versions/)([\w.-]+)$")
# Kinds of jobs that have parts, and those whose parts are trials.
COMPOSED = frozenset({"sweep", "pipeline", "automl"})
_SEARCHES = frozenset({"sweep", "automl"})


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
        """The names and the paths where they are or would be."""
        return {name: self._path(name) for name in self._types}.items()

    def values(self) -> Any:
        """The paths where they are or would be."""
        return [self._path(name) for name in self._types]

    def _path(self, name: str) -> Path:
        return self._folder / "outputs" / name

    def _download(self, name: str, target: Path) -> None:
        """Into a folder beside it first: what is cut off is not taken for an output."""
        unfinished = self._folder / "unfinished"
        with as_refusals(), self._workspace.quiet():
            self._workspace.client.jobs.download(
                self._job, download_path=unfinished, output_name=name
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        content = unfinished / "named-outputs" / name
        if content.is_dir() and self._types[name] == "uri_file":
            content = next((path for path in content.rglob("*") if path.is_file()), content)
        if content.exists():
            content.rename(target)


@dataclass(frozen=True)
class Owner:
    """azure-ai-ml's job, and the run of it with all its parts."""

    job: Any
    run: Run

    def node(self, step: Run) -> Any:
        """The step as the pipeline declares it; None for other runs."""
        label = step.name.removeprefix(f"{self.run.name}.")
        return self.job.jobs.get(label) if _kind(self.job) == "pipeline" else None


@dataclass
class AzureRuns:
    """Implements `ml.backends.runs.RunStore`."""

    # As often as azure-ai-ml's `stream` looks at first (RunHistoryConstants).
    poll_s: ClassVar[float] = 2.0
    workspace: Workspace
    # Jobs that have ended, by name, and the names of the jobs that other runs are parts of.
    _ended: dict[str, Owner] = field(default_factory=dict)
    _roots: dict[str, str] = field(default_factory=dict)

    def document(self, run: Run) -> dict[str, Any]:
        return {
            **{"name": run.name, "id": run.id, "status": run.status, "experiment": run.experiment},
            **{"started": run.started, "ended": run.ended, "best": run.best},
            "parameters": dict(run.parameters),
            "metrics": {
                name: value if math.isfinite(value) else str(value)
                for name, value in run.metrics.items()
            },
            "trials": [self.document(trial) for trial in run.trials],
            "error": str(run.error) if run.error else None,
        }

    def find(self, name: str, experiment: str | None = None) -> Run:
        if name == "latest":
            for entry in self.entries():
                if experiment in (None, entry.run.experiment):
                    return entry.run
            raise Refused(_no_such_run(name, self.workspace))
        owner = self._owner(name)
        for part in (owner.run, *owner.run.below()) if owner else ():
            if name in (part.name, part.id):
                return part
        raise Refused(_no_such_run(name, self.workspace))

    def _owner(self, name: str) -> Owner | None:
        """The job that is the run of that name or id, or that the run is a part of.

        A step has its pipeline's name and its own: `pipeline.step`, `pipeline.sweep_3`.
        """
        root = self._roots.get(name) or name.partition(".")[0]
        if root in self._ended:
            return self._ended[root]
        with as_refusals():
            while (tracked := self._tracked(root)) and (parent := _tags(tracked).get(PARENT)):
                root = parent
        job = self.job(root)
        if job is None:
            return None
        owner = Owner(job, self.read(job))
        if owner.run.status not in OPEN:
            self._ended[root] = owner
            for part in owner.run.below():
                self._roots[part.name] = self._roots[part.id] = root
        return owner

    def job(self, name: str) -> Any:
        """azure-ai-ml's job of that name; None when there is none."""
        from azure.core.exceptions import ResourceNotFoundError

        with as_refusals():
            try:
                return self.workspace.client.jobs.get(name)
            except ResourceNotFoundError:
                return None

    def read(self, job: Any) -> Run:
        """The run of a job as it is now, with its trials."""
        with as_refusals():
            tracked = self._tracked(job.name)
            children: Children = {}
            if tracked and _kind(job) in COMPOSED:
                children = self._children(job, tracked["info"]["experiment_id"])
            run = self._run(job, tracked, children)
            if run.status == "Failed":
                run = replace(run, error=self._error(job))
        return run

    def entries(self) -> list[Entry]:
        with as_refusals():
            jobs = [job for job in self.workspace.client.jobs.list() if job is not None]
            tracked: dict[str, Any] = {}
            children: Children = defaultdict(list)
            for each in self.workspace.tracked_runs("", self._experiment_ids()):
                tracked[each["info"]["run_id"]] = each
                if parent := _tags(each).get(PARENT):
                    children[parent].append(each)
        entries = [
            self._entry(job, self._run(job, tracked.get(job.name), children)) for job in jobs
        ]
        return sorted(entries, key=lambda entry: (-entry.run.started, entry.run.name))

    def _children(self, job: Any, experiment: str) -> Children:
        """The parts of a sweep or a pipeline by their parents; one request for each parent."""
        children: Children = {}
        parents = [job.name]
        while parents:
            parent = parents.pop()
            condition = f"tags.{PARENT} = '{parent}'"
            children[parent] = list(self.workspace.tracked_runs(condition, [experiment]))
            if _kind(job) == "pipeline":
                # Only a step that is a sweep or a pipeline has parts.
                composed = {name for name, node in job.jobs.items() if _kind(node) in COMPOSED}
                parents += [
                    each["info"]["run_id"]
                    for each in children[parent]
                    if parent == job.name and _label(each) in composed
                ]
        return children

    def unreadable(self, entries: Iterable[Entry]) -> list[str]:
        return []

    def entry(self, run: Run) -> Entry:
        owner = self._demand(run)
        whole = self._entry(owner.job, owner.run)
        data = {name: self._with_digest(each) for name, each in whole.lineage["data"].items()}
        lineage = {**whole.lineage, "data": data}
        if run.id == owner.run.id:
            return Entry(run, whole.kind, lineage)
        parent = self.parent(run)
        lineage = {**lineage, "parent": parent.id if parent else None}
        lineage.pop("objective", None)
        node = owner.node(run)
        if node is not None and _kind(node) in _SEARCHES:
            lineage["objective"] = _objective(node)
        return Entry(run, "sweep" if run.trials else "command", lineage)

    def _with_digest(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """The data of a run with the digest that its asset was registered with, if it is one."""
        match = _DATA.search(str(data["asset"]))
        if match is None:
            return data
        with as_refusals():
            tags = self.workspace.client.data.get(match[1], match[2]).tags or {}
        return {**data, "digest": tags.get(CONTENT, "")}

    def parent(self, run: Run) -> Run | None:
        owner = self._demand(run)
        for each in (owner.run, *owner.run.below()):
            if run.id in {part.id for part in (*each.trials, *each.steps)}:
                return each
        return None

    def _demand(self, run: Run) -> Owner:
        owner = self._owner(run.name)
        if owner is None:
            raise Refused(_no_such_run(run.name, self.workspace))
        return owner

    def original(self, run: Run) -> Run | None:
        return run

    def metrics(self, run: Run) -> Mapping[str, float]:
        with _available():
            tracked = self._tracked(run.id)
        return _metrics(tracked) if tracked else {}

    def curves(self, runs: Sequence[Run], metric: str) -> Mapping[str, Curve]:
        with _available():
            curves = {run.id: self._curve(run, metric) for run in runs if metric in run.metrics}
        return {run: curve for run, curve in curves.items() if curve}

    def all_curves(self, run: Run) -> Mapping[str, Curve]:
        with _available():
            return {metric: self._curve(run, metric) for metric in self.metrics(run)}

    def _curve(self, run: Run, metric: str) -> Curve:
        values = {"run_id": run.id, "metric_key": metric}
        points = self.workspace.tracking("metrics/get-history", **values).get("metrics") or ()
        return tuple((int(point.get("step") or 0), float(point["value"])) for point in points)

    def tag(self, runs: Sequence[Run], key: str) -> Mapping[str, str]:
        with _available():
            tags = {run.id: _tags(self._tracked(run.id) or {}).get(key) for run in runs}
        return {run: tag for run, tag in tags.items() if tag is not None}

    def sample(self, trial: Run) -> Sample | None:
        parent = self.parent(trial)
        if parent is None:
            return None
        owner, values = self._demand(trial), trial.parameters
        job = owner.node(parent) or owner.job
        names = job.search_space if _kind(job) == "sweep" else values
        return Sample(_number(trial), {name: values[name] for name in names if name in values})

    def logs(self, run: Run) -> Mapping[str, Path]:
        folder = self.folder(run.id) / _LOGS
        with as_refusals():
            self.fetch_logs(run.id, self.workspace.history(run.id))
        files = sorted(folder.glob("*.txt"))
        ranks = {path: path.stem.removeprefix("rank_") for path in files}
        return {"0" if rank == "std_log" else rank: path for path, rank in ranks.items()}

    def fetch_logs(self, job: str, details: Mapping[str, Any]) -> str:
        """Bring the logs of a job here as far as they are written; what rank 0 wrote since.

        Before it the environment's image may be built: that log counts as rank 0's too.
        """
        news = b""
        for name, url in (details.get("logFiles") or {}).items():
            rank = _rank(name)
            if rank is None:
                continue
            file = {"0": "std_log.txt", _BUILD: f"{_BUILD}.txt"}.get(rank, f"rank_{rank}.txt")
            path = self.folder(job) / _LOGS / file
            path.parent.mkdir(parents=True, exist_ok=True)
            content = self.workspace.read_from(url, path.stat().st_size if path.exists() else 0)
            with path.open("ab") as log:
                log.write(content)
            news += content if rank in ("0", _BUILD) else b""
        return news.decode(errors="replace")

    def folder(self, job: str) -> Path:
        """Where what was brought of a job lies on this machine."""
        return self.workspace.folder / job

    def outputs(self, run: Run) -> Mapping[str, Path]:
        return {name: run.outputs[name] for name in run.outputs}

    def snapshot(self, entry: Entry) -> Path | None:
        """The copy of this machine, if the job was submitted from here."""
        digest = str((entry.lineage.get("code") or {}).get("digest", "")).removeprefix("sha256:")
        folder = home.snapshots() / digest
        return folder if digest and folder.is_dir() else None

    def lineage(self, run: Run) -> list[LineageNode]:
        return [LineageNode(self.entry(run), (), (), None)]

    def _tracked(self, run: str) -> dict[str, Any] | None:
        from azure.core.exceptions import ResourceNotFoundError

        try:
            tracked: dict[str, Any] = self.workspace.tracking("runs/get", run_id=run)["run"]
        except ResourceNotFoundError:
            return None
        return tracked

    def _experiment_ids(self) -> list[str]:
        answer = self.workspace.tracking("experiments/search", max_results=1000)
        return [each["experiment_id"] for each in answer.get("experiments") or ()]

    def _error(self, job: Any) -> Problem:
        error = self.workspace.history(job.name).get("error") or {}
        message = (error.get("error") or {}).get("message") or "Azure gives no reason"
        if (problem := explain_job(message)) is not None:
            return problem
        hint = f"its log: ml runs logs {job.name} --on azure; its page: {studio(job)}"
        code = "script-failed" if "User process" in message else "job-failed"
        return Problem(code, " ".join(message.split()), hint=hint)

    def _run(self, job: Any, tracked: Mapping[str, Any] | None, children: Children) -> Run:
        info = tracked["info"] if tracked else {}
        status = _STATUSES.get(str(getattr(job.status, "value", job.status)), "Running")
        run = Run(
            id=job.name,
            name=job.name,
            status=status,
            experiment=job.experiment_name or "",
            folder=self.folder(job.name),
            started=_seconds(info.get("start_time")) or job.creation_context.created_at.timestamp(),
            ended=_seconds(info.get("end_time")) if status not in ("Queued", "Running") else None,
            parameters={**_literals(job), **(_parameters(tracked) if tracked else {})},
            metrics=_metrics(tracked) if tracked else {},
            outputs=self._outputs(job, job.name) if status == "Completed" else {},
        )
        parts = children.get(job.name, ())
        if _kind(job) in _SEARCHES:
            best = (_tags(tracked).get(_BEST_FOUND) if tracked else None) or (
                job.properties.get(_BEST_SWEPT)
            )
            return self._with_trials(run, job, parts, best)
        if _kind(job) == "pipeline":
            steps = [self._step(run, job, each, children) for each in parts]
            return replace(run, steps=tuple(sorted(steps, key=lambda step: step.started)))
        return run

    def _outputs(self, job: Any, run: str) -> Outputs:
        # `default` is the artifacts that every job has.
        types = {name: str(o.type) for name, o in (job.outputs or {}).items() if name != "default"}
        return Outputs(self.workspace, run, types, self.folder(run))

    def _with_trials(self, run: Run, job: Any, tracked: Iterable[Any], best_id: str | None) -> Run:
        """The sweep with its trials; outputs, metrics and parameters are those of the best one.

        An AutoML job has outputs of its own: the best model is copied there.
        """
        trials = sorted(
            (self._trial(run, job, each) for each in _numbered(run, tracked)), key=_number
        )
        best = next((t for t in trials if t.name == best_id), None)
        run = replace(run, trials=tuple(trials), best=best.name if best else None)
        if best is None:
            return run
        outputs = best.outputs if _kind(job) == "sweep" else run.outputs
        return replace(run, metrics=best.metrics, parameters=best.parameters, outputs=outputs)

    def _trial(self, sweep: Run, job: Any, tracked: Mapping[str, Any]) -> Run:
        info = tracked["info"]
        status = _TRACKED.get(info["status"], "Running")
        # A trial that was cancelled while its sweep went on was ended by the sweep's policy.
        early = getattr(job, "early_termination", None)
        policy = early.type if early else ""
        stopped = status == "Canceled" and sweep.status != "Canceled"
        return Run(
            id=info["run_id"],
            name=info["run_id"],
            status=status,
            experiment=sweep.experiment,
            folder=self.folder(info["run_id"]),
            started=_seconds(info.get("start_time")) or sweep.started,
            ended=_seconds(info.get("end_time")),
            parameters={**_literals(job), **_parameters(tracked)},
            metrics=_metrics(tracked),
            outputs=self._outputs(job, info["run_id"])
            if status == "Completed" and _kind(job) == "sweep"
            else {},
            ended_by=policy if stopped else "",
        )

    def _step(self, pipeline: Run, job: Any, tracked: Mapping[str, Any], children: Children) -> Run:
        """A step of a pipeline, which has a GUID on Azure and the pipeline's and its own name here.

        Its trials are ranked as its own objective says.
        """
        info, label = tracked["info"], _label(tracked)
        node = job.jobs.get(label)
        status = _TRACKED.get(info["status"], "Running")
        types = {name: _type(output) for name, output in (node.outputs if node else {}).items()}
        run = Run(
            id=info["run_id"],
            name=f"{pipeline.name}.{label}",
            status=status,
            experiment=pipeline.experiment,
            folder=self.folder(info["run_id"]),
            started=_seconds(info.get("start_time")) or pipeline.started,
            ended=_seconds(info.get("end_time")),
            parameters=_parameters(tracked),
            metrics=_metrics(tracked),
            outputs=Outputs(self.workspace, info["run_id"], types, self.folder(info["run_id"]))
            if status == "Completed"
            else {},
        )
        if node is None or _kind(node) not in _SEARCHES:
            return run
        return self._with_ranked_trials(run, node, children.get(run.id, ()))

    def _with_ranked_trials(self, run: Run, node: Any, tracked: Iterable[Any]) -> Run:
        """A sweep in a pipeline: no job of the control plane says which trial is its best."""
        trials = []
        for each in sorted(_numbered(run, tracked), key=lambda one: _order(one["info"]["run_id"])):
            trial = self._trial(run, node, each)
            trials.append(replace(trial, name=f"{run.name}_{_order(trial.id)}"))
        objective = _objective(node)
        metric, sign = objective["primary_metric"], -1 if objective["goal"] == "maximize" else 1
        completed = [t for t in trials if t.status == "Completed" and metric in t.metrics]
        best = min(completed, key=lambda trial: sign * trial.metrics[metric], default=None)
        run = replace(run, trials=tuple(trials), best=best.name if best else None)
        return replace(run, metrics=best.metrics, parameters=best.parameters) if best else run

    def _entry(self, job: Any, run: Run) -> Entry:
        properties, kind = job.properties or {}, _kind(job)
        task = job.trial if kind == "sweep" else job
        lineage: dict[str, Any] = {
            "display_name": job.display_name or "",
            "tags": dict(job.tags or {}),
            "spec": properties.get(SPEC, ""),
            "code": {
                "commit": properties.get(_COMMIT, ""),
                "branch": properties.get(_BRANCH, ""),
                "dirty": properties.get(_DIRTY) == "True" or not properties.get(_COMMIT),
                "digest": properties.get(CODE, ""),
            },
            "data": {
                name: {"asset": data.path, "source": data.path, "digest": ""}
                for name, data in _inputs(job)
                if not isinstance(data, str | int | float)
            },
            "compute": job.compute or "",
            "environment": _short(str(getattr(task, "environment", "") or "")),
            "environment_digest": "",
            "studio": studio(job),
            "parent": None,
        }
        if kind in _SEARCHES:
            lineage["objective"] = _objective(job)
        return Entry(run, kind, lineage)


def studio(job: Any) -> str:
    """The address of the job's page in Azure ML's studio."""
    return str(getattr(job, "studio_url", "") or "")


def _short(environment: str) -> str:
    """`azureml:name:version` of an ARM id; another reference as it is."""
    return re.sub(r"^/subscriptions/.*/environments/([^/]+)/versions/", r"azureml:\1:", environment)


def _objective(search: Any) -> dict[str, str]:
    """The metric and goal of a sweep or an AutoML job."""
    if _kind(search) == "automl":
        from azure.ai.ml._utils.utils import camel_to_snake

        written = getattr(search.primary_metric, "value", search.primary_metric)
        metric = camel_to_snake(written).lower()
        return {"primary_metric": automl.logged(metric), "goal": automl.goal(metric)}
    goal = str(getattr(search.objective.goal, "value", search.objective.goal)).lower()
    return {"primary_metric": search.objective.primary_metric, "goal": goal}


def _kind(job: Any) -> str:
    return str(job.type or "command").lower()


def _numbered(parent: Run, tracked: Iterable[Any]) -> list[Any]:
    """The trials among the parts of a search: AutoML also has runs that set up and explain."""
    pattern = re.compile(re.escape(parent.id) + r"_\d+")
    return [each for each in tracked if pattern.fullmatch(each["info"]["run_id"])]


def _number(trial: Run) -> int:
    return _order(trial.name)


def _order(trial: str) -> int:
    """The number of a trial, with which its name ends."""
    return int(trial.rpartition("_")[2])


def _label(tracked: Mapping[str, Any]) -> str:
    """The name of a step in its pipeline, which is its run's name."""
    return _tags(tracked).get("mlflow.runName", "")


def _type(output: Any) -> str:
    return str(getattr(getattr(output, "_data", None), "type", None) or output.type)


def _seconds(milliseconds: object) -> float | None:
    return float(str(milliseconds)) / 1000 if milliseconds else None


def _literals(job: Any) -> dict[str, Value]:
    """The inputs that are values; Azure ML keeps them as text."""
    inputs = _inputs(job)
    return {name: _value(text) for name, text in inputs if isinstance(text, str | int | float)}


def _inputs(job: Any) -> Iterator[tuple[str, Any]]:
    """The inputs of a job; a command keeps them in objects whose `path` raises for a literal."""
    if _kind(job) == "automl":
        yield from ((name, getattr(job, name)) for name in automl.DATA if getattr(job, name, None))
        return
    for name, data in (job.inputs or {}).items():
        yield name, getattr(data, "_data", data)


def _value(text: object) -> Value:
    """`0.1` is a number, as in the spec."""
    for kind in (int, float):
        try:
            return kind(str(text))
        except ValueError:
            continue
    return str(text)


def _metrics(tracked: Mapping[str, Any]) -> dict[str, float]:
    data = tracked.get("data") or {}
    return {each["key"]: float(each["value"]) for each in data.get("metrics") or ()}


def _parameters(tracked: Mapping[str, Any]) -> dict[str, Value]:
    data = tracked.get("data") or {}
    return {each["key"]: _value(each["value"]) for each in data.get("params") or ()}


def _tags(tracked: Mapping[str, Any]) -> dict[str, str]:
    data = tracked.get("data") or {}
    return {each["key"]: each["value"] for each in data.get("tags") or ()}


def _rank(file: str) -> str | None:
    """The rank whose log a file is: `user_logs/std_log.txt`, `user_logs/std_log_process_3.txt`.

    None for a file that is no log of the user's program. The log of the image's build
    (how-to-log-view-metrics: azureml-logs/20_image_build_log.txt) has a name instead.
    """
    folder, _, name = file.rpartition("/")
    if name == "20_image_build_log.txt":
        return _BUILD
    if folder != "user_logs" or not name.startswith("std_log"):
        return None
    return name.removeprefix("std_log").removesuffix(".txt").rpartition("_")[2] or "0"


@contextmanager
def _available() -> Iterator[None]:
    from azure.core.exceptions import AzureError

    try:
        yield
    except AzureError as error:
        raise TrackingUnavailable(str(error)) from error


def _no_such_run(name: str, workspace: Workspace) -> Problem:
    return Problem(
        "no-such-run",
        f"there is no run `{name}` in the workspace {workspace.name}",
        "the name of a job, or `latest`",
        "ml runs list --on azure",
    )
