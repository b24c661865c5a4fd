"""Run submitted jobs on this machine by the local backend.

Each job runs in a process that is forked from one with the imports. The process downloads code and
data, runs the plan and uploads the outputs; it records its progress in `state.json` in the job's
folder.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import RLock
from typing import Any

import isodate
import yaml

from ml.backends.base import Options
from ml.backends.local.backend import LocalBackend
from ml.backends.local.runs import records
from ml.backends.runs import OPEN, Event, Run
from ml.core import home
from ml.core.errors import Place, Problem, UserError
from ml.specs.plan import batch, planning
from ml.specs.plan.plans import (
    LITERALS,
    CommandPlan,
    Dimension,
    Distribution,
    EarlyTermination,
    Environment,
    InputPlan,
    OutputPlan,
    PipelinePlan,
    Plan,
    StepPlan,
    SweepPlan,
)
from ml.specs.sdk import load
from tests import forks
from tests.stand_ins.azure import automl
from tests.stand_ins.azure.storage import Storage

STATE = "state.json"
BUILD_LOG = "20_image_build_log.txt"
# Key of `Job.files` with the request to a batch endpoint, as JSON.
BATCH = "batch"
# Lock for reading runs: the names of MLflow runs are cached in one connection.
READING = RLock()
# Import MLflow's store once, which takes most of a small job's time.
forks.preload("tests.stand_ins.azure.jobs", "mlflow", "mlflow.store.tracking.sqlalchemy_store")
# Mode in requests (spec CommandJob/createOrUpdate) → in YAML (docs reference-yaml-job-command).
_MODES = {
    "ReadOnlyMount": "ro_mount",
    "ReadWriteMount": "rw_mount",
    "Download": "download",
    "Upload": "upload",
    "Direct": "direct",
    "EvalMount": "eval_mount",
    "EvalDownload": "eval_download",
}
# Fields of a parallel step besides its task (SDK `Parallel._to_rest_object`).
_MINI_BATCHES = (
    *("input_data", "resources", "error_threshold", "mini_batch_error_threshold"),
    *("max_concurrency_per_instance", "retry_settings", "logging_level", "environment_variables"),
)
_POLICIES = {
    "Bandit": "bandit",
    "MedianStopping": "median_stopping",
    "TruncationSelection": "truncation_selection",
}
_ENVIRONMENT = re.compile(r"^.*/environments/([^/]+)/versions/(.+)$")
_PLACE = Place("job", 0)


@dataclass
class Job:
    """A submitted job with its `properties` as sent, and the process that runs it.

    `files` maps the data and code assets that the job uses to their URIs in storage.
    """

    name: str
    properties: dict[str, Any]
    folder: Path
    files: dict[str, str]
    created: float
    process: BaseProcess | None = None
    cancel: bool = False
    children: dict[str, str] = field(default_factory=dict)

    def start(self, storage: Storage) -> None:
        """Start the job's process."""
        self.folder.mkdir(parents=True)
        work = (self.name, self.properties, self.folder, self.files, storage)
        self.process = forks.start(_carry_out, *work)

    @property
    def state(self) -> dict[str, Any]:
        """Return the last state of the process: `run`, the local run's name, and any `problem`."""
        with suppress(FileNotFoundError):
            state: dict[str, Any] = json.loads((self.folder / STATE).read_text())
            return state
        return {}

    def run(self) -> Run | None:
        """Return the local run; None before it starts."""
        name = self.state.get("run")
        if not name:
            return None
        with READING:
            return records.read_if_whole(home.jobs() / name)

    @property
    def status(self) -> str:
        """Return the status in Azure ML's terms (SDK `RunHistoryConstants`)."""
        run, is_alive = self.run(), self.process is not None and self.process.is_alive()
        if run is None:
            if self.cancel:
                return "Canceled"
            if self.process is None:
                return "Queued"
            return "Preparing" if is_alive else "Failed"
        if run.status in OPEN:
            return "Running" if is_alive else "Failed"
        return "Finalizing" if is_alive else run.status

    def end(self) -> None:
        """Cancel the job."""
        self.cancel = True
        run = self.run()
        if run is not None:
            with suppress(UserError), READING:
                LocalBackend().cancel(run.name)
        elif self.process is not None:
            self.process.terminate()


def _carry_out(
    name: str, properties: Mapping[str, Any], folder: Path, files: Mapping[str, str], store: Storage
) -> None:
    """Run a job in its own process: download, plan, run, upload the outputs."""
    state: dict[str, str] = {}

    def tell(**changes: str) -> None:
        state.update(changes)
        unfinished = folder / "state.tmp"
        unfinished.write_text(json.dumps(state))
        unfinished.replace(folder / STATE)

    def watch(event: Event) -> None:
        if event.kind == "started":
            tell(run=event.run.name)

    log = os.open(folder / "process.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        _build_images(folder, files)
        run = LocalBackend(Options()).run(
            _Plans(folder, files, store).plan(name, properties), watch
        )
        tell(run=run.name)
        with READING:
            for part in parts(name, run):
                for output, path in part.run.outputs.items():
                    if path.exists():
                        store.store(path, output_path(part.id, output))
    except UserError as refused:
        tell(problem=str(refused))


def _build_images(folder: Path, files: Mapping[str, str]) -> None:
    """Write an image build's log for each conda file; fail for unknown packages.

    docs how-to-troubleshoot-environments: the text of a failed build.
    """
    for environment, conda in files.items():
        if "/environments/" not in environment:
            continue
        packages = re.findall(r"^\s*-\s+([\w.-]+)", conda, re.M)
        lines = [f"Collecting {package}" for package in packages]
        missing = [package for package in packages if package.startswith("no-such-")]
        lines += [f"ERROR: No matching distribution found for {each}" for each in missing]
        (folder / BUILD_LOG).write_text("\n".join(lines) + "\n")
        if missing:
            why = "Image build failed. For more information, check log"
            raise UserError(Problem("image", f"{why} azureml-logs/{BUILD_LOG}"))


@dataclass(frozen=True)
class Part:
    """A run of a job: the job itself, a trial or a step, with its workspace id, parent and label.

    A trial's id is its sweep's id and its number (docs how-to-tune-hyperparameters). A pipeline
    step has a GUID, and its name in the pipeline as label.
    """

    id: str
    run: Run
    parent: str
    label: str


def parts(id: str, run: Run, parent: str = "", label: str = "") -> Iterator[Part]:
    """Yield the run and all its trials and steps."""
    yield Part(id, run, parent, label)
    for trial in run.trials:
        name = f"{id}_{trial.name.rpartition('_')[2]}"
        yield Part(name, trial, id, name)
    for step in run.steps:
        name = step.name.rpartition(".")[2]
        yield from parts(str(uuid.uuid5(uuid.NAMESPACE_URL, f"{id}/{name}")), step, id, name)


def output_path(job: str, output: str) -> str:
    """Return the path of a job's output in the workspace's container.

    docs how-to-read-write-data-v2: `azureml/{run id}/{output name}` in the default datastore.
    """
    return f"azureml/{job}/{output}"


@dataclass(frozen=True)
class _Plans:
    """Converts request bodies of jobs to plans, and downloads their code and data."""

    folder: Path
    files: Mapping[str, str]
    storage: Storage

    def plan(self, name: str, properties: Mapping[str, Any]) -> Plan:
        kind = properties["jobType"]
        if BATCH in self.files:
            return self._batch(json.loads(self.files[BATCH]))
        if kind == "Command":
            return self._command(name, properties, properties)
        if kind == "Sweep":
            return self._sweep(name, properties)
        if kind == "Pipeline":
            return self._pipeline(properties)
        if kind == "AutoML":
            return self._search(name, properties)
        raise UserError(Problem("unknown-job", f"the stand-in does not run {kind} jobs"))

    def _command(self, name: str, job: Mapping[str, Any], task: Mapping[str, Any]) -> CommandPlan:
        """Return a command's plan; `task` has the command: the job itself, or a sweep's trial."""
        limits, resources = job.get("limits") or {}, task.get("resources") or {}
        code = task.get("codeId")
        return CommandPlan(
            _PLACE,
            job.get("displayName") or name,
            job.get("experimentName") or "Default",
            task["command"],
            self.storage.fetch(self.files[code], self.folder / "code") if code else None,
            Environment(task["environmentId"].rpartition("/environments/")[2]),
            job.get("computeId") or "",
            environment_variables=task.get("environmentVariables") or {},
            inputs={key: self._input(key, each) for key, each in _items(job, "inputs")},
            outputs={
                key: OutputPlan(key, each["jobOutputType"], _PLACE)
                for key, each in _items(job, "outputs")
            },
            timeout_s=_seconds(limits.get("timeout")),
            instance_count=resources.get("instanceCount") or 1,
            distribution=_distribution(task.get("distribution")),
            tags=job.get("tags") or {},
        )

    def _sweep(self, name: str, job: Mapping[str, Any]) -> SweepPlan:
        limits = job.get("limits") or {}
        trial = self._command(name, {**job, "limits": {}}, job["trial"])
        algorithm, objective = job["samplingAlgorithm"], job["objective"]
        return SweepPlan(
            _PLACE,
            trial.display_name,
            trial.experiment,
            trial,
            {key: _dimension(key, *each) for key, each in job["searchSpace"].items()},
            algorithm["samplingAlgorithmType"].lower(),
            objective["goal"].lower(),
            objective["primaryMetric"],
            seed=algorithm.get("seed"),
            rule=(algorithm.get("rule") or "random").lower(),
            max_total_trials=limits.get("maxTotalTrials") or 1,
            max_concurrent_trials=limits.get("maxConcurrentTrials") or 1,
            timeout_s=_seconds(limits.get("timeout")),
            trial_timeout_s=_seconds(limits.get("trialTimeout")),
            early_termination=_policy(job.get("earlyTermination")),
        )

    def _search(self, name: str, job: Mapping[str, Any]) -> Plan:
        """Return the plan of an AutoML job: a sweep, written as YAML and planned."""
        data = self._input("training_data", job["taskDetails"]["trainingData"])
        table = {"type": data.type, "path": str(data.path)}
        outputs = {key: {"type": each["jobOutputType"]} for key, each in _items(job, "outputs")}
        document = automl.job(automl.of_job(job["taskDetails"]), table, outputs, self.folder)
        return self._planned(
            {
                **document,
                "display_name": job.get("displayName") or name,
                "experiment_name": job.get("experimentName") or "Default",
            }
        )

    def _planned(self, document: Mapping[str, Any]) -> Plan:
        path = self.folder / "job.yml"
        path.write_text(yaml.safe_dump(dict(document), sort_keys=False))
        return planning.plan(load.load(path), root=self.folder)

    def _batch(self, scoring: Mapping[str, Any]) -> Plan:
        """Return the plan of a batch request: docs how-to-use-batch-model-deployments."""
        settings = scoring["deployment"]
        code = {key: _plain(text) for key, text in settings["codeConfiguration"].items()}
        model = _plain(settings["model"]["assetId"])
        place = self.storage.fetch(
            self.files[model], self.folder / "model" / Path(self.files[model]).name
        )
        document = {
            "$schema": "https://azuremlschemas.azureedge.net/latest/modelBatchDeployment"
            ".schema.json",
            "type": "model",
            "name": scoring["name"],
            "endpoint_name": scoring["endpoint"],
            "model": {"path": str(place)},
            "code_configuration": {
                "code": str(self.storage.fetch(self.files[code["codeId"]], self.folder / "code")),
                "scoring_script": code["scoringScript"],
            },
            "environment": _ENVIRONMENT.sub(r"azureml:\1:\2", _plain(settings["environmentId"])),
            "compute": "azureml:cpu-cluster",
            "settings": {
                "mini_batch_size": settings.get("miniBatchSize") or 10,
                "output_file_name": settings.get("outputFileName") or "predictions.csv",
                "error_threshold": settings.get("errorThreshold", -1),
                "environment_variables": settings.get("environmentVariables") or {},
            },
        }
        path = self.folder / "deployment.yml"
        path.write_text(yaml.safe_dump(document))
        data = self._input("input", {**scoring["input"], "jobInputType": "uri_folder"})
        assert data.path is not None
        plan = batch.planned(load.load(path), data.path)
        step = StepPlan(_PLACE, plan)
        return PipelinePlan(_PLACE, plan.display_name, plan.experiment, {"batchscoring": step})

    def _pipeline(self, job: Mapping[str, Any]) -> Plan:
        """Return a pipeline's plan: its request body is converted to YAML and planned."""
        inputs: dict[str, Any] = {}
        for name, data in _items(job, "inputs"):
            planned = self._input(name, data)
            literal = {"type": planned.type, "path": str(planned.path)}
            inputs[name] = data["value"] if planned.is_literal else literal
        document = {
            "type": "pipeline",
            "display_name": job.get("displayName"),
            "experiment_name": job.get("experimentName") or "Default",
            "inputs": inputs,
            "outputs": {
                name: {"type": each["jobOutputType"]} for name, each in _items(job, "outputs")
            },
            "settings": {
                **{key: value for key, value in job["settings"].items() if key[0] != "_"},
                "default_compute": "azureml:cpu-cluster",
            },
            "jobs": {name: self._node(node) for name, node in job["jobs"].items()},
        }
        return self._planned(document)

    def _node(self, node: Mapping[str, Any]) -> dict[str, Any]:
        """Return a step as YAML: the inverse of SDK `BaseNode._to_rest_object`."""
        kept = ("type", "search_space", "sampling_algorithm", "objective")
        step: dict[str, Any] = {key: node[key] for key in kept if key in node}
        step["inputs"] = {name: each["value"] for name, each in _items(node, "inputs")}
        step["outputs"] = {
            name: each.get("value") or {"type": each["job_output_type"]}
            for name, each in _items(node, "outputs")
        }
        if node["type"] == "parallel":
            settings = {key: node[key] for key in _MINI_BATCHES if node.get(key) is not None}
            settings["mini_batch_size"] = str(node["mini_batch_size"])
            return {**step, **settings, "task": self._with_code(node["task"])}
        if node["type"] == "automl":
            table, folder = node["training_data"], self.folder / "code"
            return automl.step(automl.of_node(node), table, step["outputs"], folder)
        if node["type"] == "sweep":
            step["trial"] = self._component(node["trial"]["componentId"])
            step["limits"] = node["limits"]
            if policy := node.get("early_termination"):
                kind = _POLICIES[policy["policy_type"]]
                step["early_termination"] = {**policy, "type": kind}
                del step["early_termination"]["policy_type"]
            return step
        step["component"] = self._component(node["componentId"])
        timeout = _seconds((node.get("limits") or {}).get("timeout"))
        if timeout:
            step["limits"] = {"timeout": int(timeout)}
        return step

    def _component(self, id: str) -> dict[str, Any]:
        """Return a component as YAML, with its code in a local folder."""
        component = self._with_code(json.loads(self.files[id]))
        return {key: value for key, value in component.items() if key[0] not in "_$"}

    def _with_code(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return a command or a parallel step's task with local names and paths."""
        local = {**task, "environment": _ENVIRONMENT.sub(r"azureml:\1:\2", task["environment"])}
        if code := _plain(str(local.pop("code", None) or "")):
            folder = self.folder / "code" / code.split("/")[-3]
            local["code"] = str(self.storage.fetch(self.files[code], folder))
        return local

    def _input(self, name: str, data: Mapping[str, Any]) -> InputPlan:
        kind = data["jobInputType"]
        if kind == "literal":
            return InputPlan(name, "string", _PLACE, value=data["value"])
        folder = self.folder / "inputs" / name
        path = self.storage.fetch(self.files.get(data["uri"], data["uri"]), folder)
        mode = _MODES[data.get("mode") or "ReadOnlyMount"]
        return InputPlan(name, kind, _PLACE, source=data["uri"], path=path, mode=mode)


def _plain(reference: str) -> str:
    return reference.removeprefix("azureml:")


def _items(job: Mapping[str, Any], key: str) -> Iterator[tuple[str, Any]]:
    yield from (job.get(key) or {}).items()


def _seconds(duration: str | None) -> float | None:
    return isodate.parse_duration(duration).total_seconds() if duration else None


def _distribution(data: Mapping[str, Any] | None) -> Distribution | None:
    if not data:
        return None
    return Distribution(
        data["distributionType"].lower(),
        data.get("processCountPerInstance") or 1,
        _PLACE,
        data.get("workerCount"),
        data.get("parameterServerCount") or 0,
    )


def _dimension(name: str, kind: str, arguments: list[Any]) -> Dimension:
    """Parse SDK `SearchSpace`: `["uniform", [0.01, 0.3]]`, `["choice", [[15, 31]]]`."""
    return Dimension(name, kind, tuple(arguments[0] if kind == "choice" else arguments), _PLACE)


def _policy(data: Mapping[str, Any] | None) -> EarlyTermination | None:
    if not data:
        return None
    return EarlyTermination(
        _POLICIES[data["policyType"]],
        _PLACE,
        data.get("evaluationInterval") or 1,
        data.get("delayEvaluation") or 0,
        data.get("slackFactor"),
        data.get("slackAmount"),
        data.get("truncationPercentage"),
    )


def literals(properties: Mapping[str, Any]) -> set[str]:
    """Return the names of the inputs that are literal values."""
    return {
        key
        for key, each in _items(properties, "inputs")
        if each["jobInputType"] in {"literal"} | LITERALS
    }
