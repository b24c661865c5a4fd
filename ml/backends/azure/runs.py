"""The runs of a workspace: the Azure implementation of the port `RunStore`.

Jobs come from the control plane. Times, metrics and trials come from MLflow tracking, where a job's
run has the job's name. A list needs one request to each of them per page.
"""

from __future__ import annotations

import math
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from ml.backends.azure.errors import as_user_errors, explain_job, or_none
from ml.backends.azure.jobs import (
    COMPOSED,
    PARENT,
    SEARCHES,
    Children,
    JobReader,
    kind_of,
    label_of,
    metrics_of,
    number_of,
    objective_of,
    promoted,
    short,
    studio,
    tags_of,
    task_of,
)
from ml.backends.azure.resources import CONTENT
from ml.backends.azure.workspace import Workspace
from ml.backends.runs import (
    OPEN,
    Curve,
    Entry,
    Filter,
    Run,
    Service,
    TrackingUnavailable,
    latest,
)
from ml.core.errors import Exit, Problem, UserError
from ml.specs.plan.plans import Sample, Value

_LOGS = "logs"
_BUILD = "image_build"
# Allowed log names, since they name local files. `retry_001/` is the folder of a second attempt.
_LOG = re.compile(
    r"user_logs/(?:(retry_\d{1,9})/)?(std_log[A-Za-z0-9_-]{0,100}\.txt)"
    r"|azureml-logs/((?:70_driver_log[A-Za-z0-9_-]{0,100}|20_image_build_log)\.txt)"
)
# Log names with a rank, of a process or of a node's worker or parameter server (ps), such as
# std_log_process_03, std_log_node_00_ps, 70_driver_log_3, 70_driver_log-worker-0.
_RANK = re.compile(
    r"(?:std_log|70_driver_log)(?:[_-](?P<before>process|node|rank|worker|ps))?"
    r"(?:[_-](?P<number>\d{1,9}))?(?:[_-](?P<after>worker|ps))?"
)
# A data asset's reference, `azureml:NAME:VERSION` or its ARM ID.
_DATA = re.compile(r"(?:^(?:azureml:)?|/data/)([\w.-]+)(?::|/versions/)([\w.-]+)$")
_COMPONENT = re.compile(
    r"^(?:(?:azureml:)?|/subscriptions/.*/components/)([\w.-]+)(?::|/versions/)([\w.-]+)$"
)


@dataclass(frozen=True)
class Owner:
    """A root job: azure-ai-ml's entity, and its run with trials and steps."""

    job: Any
    run: Run

    def node(self, step: Run) -> Any:
        """Return azure-ai-ml's node of a pipeline's step; None for other runs."""
        label = step.name.removeprefix(f"{self.run.name}.")
        return self.job.jobs.get(label) if kind_of(self.job) == "pipeline" else None


@dataclass
class AzureRuns:
    """Implements `ml.backends.runs.RunStore`."""

    # The first polling interval of azure-ai-ml's `stream` (RunHistoryConstants).
    poll_s: ClassVar[float] = 2.0
    # Seconds to retry after errors of the service, and after other errors: a sign-in is renewed
    # within a minute, and a lagging replica knows a new run by then.
    LONG_S: ClassVar[float] = 1800.0
    SHORT_S: ClassVar[float] = 120.0
    records: ClassVar[None] = None
    workspace: Workspace
    # Cache of ended jobs by name, and the root job's name by the name or id of its child runs.
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

    def patience_s(self, refused: UserError) -> float:
        return self.LONG_S if refused.exit_code == Exit.RUN_FAILED else self.SHORT_S

    def find(self, name: str, experiment: str | None = None) -> Run:
        if name == "latest":
            if run := latest(self.newest(Filter(experiment=experiment, by_person=True), 1)):
                return run
            raise UserError(_no_such_run(name, self.workspace))
        owner = self._owner(name)
        for part in (owner.run, *owner.run.below()) if owner else ():
            if name in (part.name, part.id):
                return part
        raise UserError(_no_such_run(name, self.workspace))

    def _owner(self, name: str) -> Owner | None:
        """Return the root job of the run with that name or id; None if there is none.

        Names of steps and their trials begin with the pipeline's: `pipeline.step`.
        """
        root = self._roots.get(name) or name.partition(".")[0]
        if root in self._ended:
            return self._ended[root]
        while (tracked := self._tracked(root)) and (parent := tags_of(tracked).get(PARENT)):
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

    def history(self, name: str) -> dict[str, Any]:
        """Return run history's details of a run (JSON); {} if run history does not know it."""
        with as_user_errors(), _parsing(name):
            details = self.workspace.history(name)
            if details and not isinstance(details["status"], str):
                raise TypeError(f"status {details['status']!r}")
            return details

    def current_state(self, name: str) -> Owner:
        """Return the job's current state.

        Raise UserError if there is no such job, or if a completed one has no MLflow run.
        """
        job = self.job(name)
        if job is None:
            raise UserError(_no_such_run(name, self.workspace))
        run = self.read(job)
        if run.status == "Completed" and self._tracked(name) is None:
            actual = f"MLflow has no run of the completed job {name}"
            hint = f"ml runs show {name} --on azure"
            raise UserError(Problem("not-tracked", actual, "an MLflow run with its metrics", hint))
        return Owner(job, run)

    def job(self, name: str) -> Any:
        """Return azure-ai-ml's job of that name; None for a pipeline's step or if there is none."""
        job = or_none(lambda: self.workspace.client.jobs.get(name))
        return None if job is None or kind_of(job) == "base" else job

    def read(self, job: Any) -> Run:
        """Return the current run of a job, with its trials, steps and error."""
        with as_user_errors():
            tracked = self._tracked(job.name)
            children: Children = {}
            if tracked and kind_of(job) in COMPOSED:
                children = self._children(job, tracked["info"]["experiment_id"])
            with _parsing(job.name):
                run = self.reader.run(job, tracked, children)
            if run.status == "Failed":
                run = replace(run, error=self._error(job))
        return run

    def entries(self) -> list[Entry]:
        return self.newest(Filter(), 0)

    def newest(self, wanted: Filter, count: int) -> list[Entry]:
        with as_user_errors():
            # The service lists the newest first.
            listed = self.workspace.client.jobs.list()
            jobs = [*islice((job for job in listed if self._passes(job, wanted)), count or None)]
            tracked, children = self._tracked_with_children(jobs)
            entries = []
            for job in jobs:
                with _parsing(job.name):
                    run = self.reader.run(job, tracked.get(job.name), children)
                entries.append(self.reader.entry(job, run))
        return sorted(entries, key=lambda entry: (-entry.run.started, entry.run.name))

    def _passes(self, job: Any, wanted: Filter) -> bool:
        """Return whether a listed job passes the filter, by its control-plane data alone."""
        if job is None:
            return False
        with _parsing(job.name):
            return bool(wanted.apply([self.reader.entry(job, self.reader.run(job, None, {}))]))

    def _tracked_with_children(self, jobs: Sequence[Any]) -> tuple[dict[str, Any], Children]:
        """Return the MLflow runs of these jobs by name, and those of their children by parent.

        The service lists the newest runs first, and a child starts after its parent. So the listing
        stops once each job is found, or all other runs are older than the jobs.
        """
        tracked: dict[str, Any] = {}
        children: Children = defaultdict(list)
        missing = {job.name for job in jobs}
        oldest = min((job.creation_context.created_at.timestamp() for job in jobs), default=0.0)
        experiments = self._experiment_ids({job.experiment_name or "" for job in jobs})
        for run in self.workspace.tracked_runs("", experiments):
            with _parsing("a run"):
                tracked[run["info"]["run_id"]] = run
                missing.discard(run["info"]["run_id"])
                if parent := tags_of(run).get(PARENT):
                    children[parent].append(run)
                started = float(run["info"].get("start_time") or 0) / 1000
                if not missing or 0 < started < oldest:
                    break
        return tracked, children

    def _children(self, job: Any, experiment: str) -> Children:
        """Return the child runs of a search or a pipeline by parent; one request per parent."""
        children: Children = {}
        parents = [job.name]
        while parents:
            parent = parents.pop()
            condition = f"tags.{PARENT} = '{parent}'"
            children[parent] = list(self.workspace.tracked_runs(condition, [experiment]))
            if kind_of(job) == "pipeline":
                # Only steps of these kinds have child runs.
                composed = {name for name, node in job.jobs.items() if kind_of(node) in COMPOSED}
                parents += [
                    child["info"]["run_id"]
                    for child in children[parent]
                    if parent == job.name and label_of(child) in composed
                ]
        return children

    def entry(self, run: Run) -> Entry:
        owner = self._demand(run)
        owning = self.reader.entry(owner.job, owner.run)
        data = {name: self._with_digest(asset) for name, asset in owning.lineage["data"].items()}
        lineage = {**owning.lineage, "data": data}
        if run.id == owner.run.id:
            return Entry(run, owning.kind, lineage)
        parent = self.parent(run)
        lineage = {**lineage, "parent": parent.id if parent else None}
        lineage.pop("objective", None)
        node = owner.node(run)
        step = node or (owner.node(parent) if parent else None)
        if step is not None:
            with as_user_errors():
                environments = sorted(set(self._environments(step)))
            lineage["environment"] = ", ".join(environments)
        if node is not None and kind_of(node) in SEARCHES:
            lineage["objective"] = objective_of(node)
        return Entry(run, "sweep" if run.trials else "command", lineage)

    def _environments(self, step: Any) -> Iterator[str]:
        """Yield the environments of a step's registered component; none for AutoML."""
        component = _COMPONENT.search(str(task_of(step) or ""))
        if component is None:
            return
        entity = or_none(lambda: self.workspace.client.components.get(component[1], component[2]))
        if entity is None:
            return
        if entity.type == "pipeline":
            for inner in entity.jobs.values():
                yield from self._environments(inner)
        elif entity.environment:
            yield short(str(entity.environment))

    def _with_digest(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a data input's lineage with the digest of its data asset, if it is an asset."""
        match = _DATA.search(str(data["asset"]))
        if match is None:
            return data
        with as_user_errors():
            tags = self.workspace.client.data.get(match[1], match[2]).tags or {}
        return {**data, "digest": tags.get(CONTENT, "")}

    def parent(self, run: Run) -> Run | None:
        owner = self._demand(run)
        for candidate in (owner.run, *owner.run.below()):
            if run.id in {part.id for part in (*candidate.trials, *candidate.steps)}:
                return candidate
        return None

    def _demand(self, run: Run) -> Owner:
        owner = self._owner(run.name)
        if owner is None:
            raise UserError(_no_such_run(run.name, self.workspace))
        return owner

    def writer(self, pipeline: Run, output: str) -> Run:
        owner = self._demand(pipeline)
        for step in pipeline.steps:
            if output in promoted(owner.node(step)):
                return step
        return pipeline

    def metrics(self, run: Run) -> Mapping[str, float]:
        with _available():
            tracked = self._tracked(run.id)
        return metrics_of(tracked) if tracked else {}

    def parameters(self, run: Run) -> Mapping[str, Value]:
        return run.parameters

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
        return tuple(
            (int(point.get("step") or 0), float(point["value"]))
            for point in points
            if point.get("value") is not None
        )

    def tag(self, runs: Sequence[Run], key: str) -> Mapping[str, str]:
        with _available():
            tags = {run.id: tags_of(self._tracked(run.id) or {}).get(key) for run in runs}
        return {run: tag for run, tag in tags.items() if tag is not None}

    def sample(self, trial: Run) -> Sample | None:
        parent = self.parent(trial)
        if parent is None:
            return None
        owner, values = self._demand(trial), trial.parameters
        job = owner.node(parent) or owner.job
        names = job.search_space if kind_of(job) == "sweep" else values
        return Sample(number_of(trial), {name: values[name] for name in names if name in values})

    def logs(self, run: Run) -> Mapping[str, Path]:
        folder = self.reader.folder(run.id) / _LOGS
        for _ in self.fetch_logs(run.id, self.history(run.id)):
            pass
        ranks = _by_rank(path.name for path in folder.glob("*.txt"))
        return {rank: folder / name for rank, name in ranks.items()}

    def fetch_logs(self, job: str, details: Mapping[str, Any]) -> Iterator[str]:
        """Download new text of each log of a job; yield that of rank 0 and of the image build.

        Raise UserError if a log cannot be read.
        """
        with as_user_errors(), _parsing(job):
            listed = dict(details.get("logFiles") or {})
        files = {name: file for name in listed if (file := _local_name(name))}
        ranks = _by_rank(files.values())
        for name, file in files.items():
            url, path = listed[name], self.reader.folder(job) / _LOGS / file
            path.parent.mkdir(parents=True, exist_ok=True)
            start = path.stat().st_size if path.exists() else 0
            try:
                with as_user_errors():
                    content = self.workspace.read_from(url, start)
            except UserError as refused:
                problem = refused.problems[0]
                actual = f"the log {name} of {job} cannot be read: {problem.actual}"
                unread = replace(problem, actual=actual)
                raise UserError(unread, exit_code=refused.exit_code) from refused
            with path.open("ab") as log:
                log.write(content)
            if content and file in (ranks.get("0"), ranks.get(_BUILD)):
                yield content.decode(errors="replace")

    @property
    def reader(self) -> JobReader:
        """The converter of jobs to runs."""
        return JobReader(self.workspace)

    def services(self, run: Run) -> Sequence[Service]:
        listed = or_none(lambda: self.workspace.client.jobs.show_services(run.id)) or {}
        return tuple(
            Service(
                name,
                service.type or "",
                service.status or "",
                self._ssh(run) if service.type == "SSH" else service.endpoint or "",
                service.error or "",
            )
            for name, service in listed.items()
        )

    def _ssh(self, run: Run) -> str:
        """Return the `az` command for SSH, from Azure ML's guide how-to-interactive-jobs."""
        options = {
            **{"--name": run.id, "--node-index": "0", "--private-key-file-path": "KEY"},
            **{"--resource-group": self.workspace.group, "--workspace-name": self.workspace.name},
        }
        words = [word for option in options.items() for word in option]
        return shlex.join(["az", "ml", "job", "connect-ssh", *words])

    def outputs(self, run: Run) -> Mapping[str, Path]:
        return {name: run.outputs[name] for name in run.outputs}

    def _tracked(self, run: str) -> dict[str, Any] | None:
        tracked = or_none(lambda: self.workspace.tracking("runs/get", run_id=run)["run"])
        return tracked if isinstance(tracked, dict) and tracked.get("info") else None

    def _experiment_ids(self, names: Iterable[str]) -> list[str]:
        """Return the ids of the experiments with these names; skip names unknown to MLflow."""
        ask = partial(self.workspace.tracking, "experiments/get-by-name")
        experiments = [or_none(partial(ask, experiment_name=name)) for name in sorted(names)]
        return [answer["experiment"]["experiment_id"] for answer in experiments if answer]

    def _error(self, job: Any) -> Problem:
        error = self.workspace.history(job.name).get("error") or {}
        message = (error.get("error") or {}).get("message") or "Azure gives no reason"
        if (problem := explain_job(message)) is not None:
            return problem
        hint = f"its log: ml runs logs {job.name} --on azure; its page: {studio(job)}"
        code = "script-failed" if "User process" in message else "job-failed"
        return Problem(code, " ".join(message.split()), hint=hint)


def _local_name(file: str) -> str | None:
    """Return the unique local file name of a log; None if it is an internal log of the service.

    Logs of a retry get a prefix: `retry_001.std_log.txt`. The names are from azure-ai-ml's
    JobLogPattern.
    """
    match = _LOG.fullmatch(file)
    return None if match is None else ".".join(filter(None, match.groups()))


def _by_rank(names: Iterable[str]) -> dict[str, str]:
    """Map ranks to log names; a log without a rank, or with a taken one, is under its own name."""
    ranks: dict[str, str] = {}
    # As in the SDK, the common runtime's std_log takes precedence over the older 70_driver_log.
    for name in sorted(names, key=lambda name: (not name.startswith("std_log"), name)):
        stem = name.removesuffix(".txt")
        match = _RANK.fullmatch(stem)
        rank = _BUILD if stem == "20_image_build_log" else stem
        if match is not None:
            number = str(int(match["number"] or 0))
            rank = f"ps_{number}" if "ps" in (match["before"], match["after"]) else number
        ranks[stem if rank in ranks else rank] = name
    return ranks


@contextmanager
def _parsing(what: str) -> Iterator[None]:
    """Raise DecodeError if the block fails to parse a response of the service."""
    from azure.core.exceptions import DecodeError

    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise DecodeError(f"invalid run in the response for {what}: {error!r}") from error


@contextmanager
def _available() -> Iterator[None]:
    try:
        with as_user_errors():
            yield
    except UserError as refused:
        raise TrackingUnavailable(refused.problems[0].actual) from refused


def _no_such_run(name: str, workspace: Workspace) -> Problem:
    actual = f"the workspace {workspace.name} has no run `{name}`"
    expected, hint = "the name of a job, or `latest`", "ml runs list --on azure"
    return Problem("no-such-run", actual, expected, hint)
