"""Checks the job that a GitHub workflow submits to Azure for the author of a pull request.

It checks the request that azure-ai-ml would send, because Azure acts on that, not on the spec. Only
the fields and values listed here are allowed.
Each command and sweep must set a timeout and stay within `platform:training` of the stack file.
The number of steps and the time of a parallel step are unlimited. The code itself, which runs
with the cluster's identity, is not checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ml.core.documents import Key
from ml.core.errors import Place, Problem
from ml.specs.assets import assets
from ml.specs.check.clusters import Bounds
from ml.specs.sdk.load import Spec, request
from ml.specs.yaml_node import YamlNode

# Prefixes of properties and tags that only Azure ML and this template may set, to record a job's
# origin.
RESERVED = ("mlflow.", "azureml.", "gitops.")
# Prefixes of variables for Azure ML's agent on the node, which mounts data and signs in.
_OF_THE_AGENT = (
    *("AZ", "AML_", "DATASET_", "DEFAULT_IDENTITY_", "IDENTITY_", "MLFLOW_", "MSI_", "OBO_"),
    "RSLEX_",
)
_NAME = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)
# The version is required: the newest one in a workspace may not have been reviewed.
_ASSET = re.compile(r"(?:azureml:)?([\w.-]+:[\w.-]+)", re.ASCII)
_OF_PIPELINE = re.compile(r"\$\{\{parent\.(?:inputs|outputs|jobs)\.[\w.-]+\}\}", re.ASCII)
_OF_STEP = re.compile(r"\$\{\{(?:inputs|outputs)\.[\w.-]+\}\}", re.ASCII)
# URLs that Azure ML may resolve in its storage, even in fields for literal values.
_ADDRESS = re.compile(
    r"\s*(?:(?:azureml|wasbs?|abfss?|adl):|/subscriptions/|https?://[^/]*\.(?:blob|dfs|file)\.)",
    re.I,
)
_DURATION = re.compile(
    r"P(?=\d|T\d)(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d+)?)S)?)?",
    re.ASCII,
)
_BOUND = "at most {:,} (`platform:training` of the stack file)"
_DATA = frozenset({"uri_file", "uri_folder", "mltable"})
_MODELS = frozenset({"custom_model", "mlflow_model", "triton_model"})
_VALUES = frozenset({"string", "integer", "number", "boolean"})
_WRITTEN = frozenset({"upload", "rw_mount", "mount", "Upload", "ReadWriteMount"})

Keys = tuple[Key, ...]
Rule = Callable[[Keys, Any], Iterator[Problem]]


def problems(
    spec: Spec, clusters: Collection[str], bounds: Bounds, declared: Path
) -> list[Problem]:
    """Return a problem, with its line, for each field of the job that is not allowed.

    The job may run on the `clusters` within the `bounds`. It may use data, models and environments
    that the repository `declared` defines: a checkout of the protected branch, not of the pull
    request. An input that the caller overrides may be anywhere.
    """
    try:
        body = request(spec)
    except Exception as error:  # azure-ai-ml may raise any exception
        why, expected = " ".join(str(error).split()), "a job that azure-ai-ml can send"
        actual = f"azure-ai-ml rejects the job: {why or type(error).__name__}"
        hint = "change the field that the message names, then `ml check SPEC`"
        return [Problem("not-submitted", actual, expected, hint, spec.place())]
    return list(dict.fromkeys(_Request(spec, body, clusters, bounds, declared).problems()))


@dataclass(frozen=True)
class _Request:
    spec: Spec
    body: Mapping[str, Any]
    clusters: Collection[str]
    bounds: Bounds
    declared: Path

    def problems(self) -> Iterator[Problem]:
        if self.body["name"] is not None:
            expected = "no name: the workflow generates one"
            yield self._problem(("name",), self.body["name"], expected)
        job = self.body.get("properties") or {}
        kind = str(job.get("jobType")).lower()
        if kind not in self._jobs:
            yield self._problem(("type",), kind, f"one of: {', '.join(sorted(self._jobs))}")
            return
        yield from self._each({**self._every_job, **self._jobs[kind]})((), job)
        if kind != "pipeline":
            yield from self._placed((), job)
            yield from self._limited((), kind, job)

    @cached_property
    def _every_job(self) -> Mapping[str, Rule]:
        texts = ("display_name", "description", "experiment_name", "is_archived", "job_type")
        return {
            **dict.fromkeys(texts, self._scalar),
            "tags": self._tags,
            "inputs": self._named(self._input),
            "outputs": self._named(self._output),
            "compute_id": self._compute,
        }

    @cached_property
    def _command(self) -> Mapping[str, Rule]:
        return {
            "command": self._scalar,
            "code_id": self._code,
            "environment_id": self._environment,
            **self._how,
        }

    @cached_property
    def _how(self) -> Mapping[str, Rule]:
        """Return the rules for the fields that control how a command runs, by field."""
        ranks = ("type", "distribution_type", "process_count_per_instance")
        return {
            "environment_variables": self._variables,
            "limits": self._each(self._limits),
            "resources": self._each(
                {"instance_count": self._at_most(self.bounds.nodes), "shm_size": self._scalar}
            ),
            "distribution": self._of(*ranks, "parameter_server_count", "worker_count"),
        }

    @cached_property
    def _limits(self) -> Mapping[str, Rule]:
        return {
            "job_limits_type": self._scalar,
            **dict.fromkeys(("timeout", "trial_timeout"), self._at_most(self.bounds.hours * 3600)),
            "max_total_trials": self._at_most(self.bounds.trials),
            "max_concurrent_trials": self._at_most(self.bounds.trials_at_once),
        }

    @cached_property
    def _search(self) -> Mapping[str, Rule]:
        words = ("search_space", "sampling_algorithm", "objective", "early_termination")
        return {**dict.fromkeys(words, self._plain), **self._how}

    @cached_property
    def _batches(self) -> Mapping[str, Rule]:
        """Return the rules for the fields of a parallel step: mini-batches and `task`."""
        words = (
            *("mini_batch_size", "mini_batch_error_threshold", "error_threshold", "logging_level"),
            *("max_concurrency_per_instance", "partition_keys", "retry_settings"),
        )
        task = {
            **dict.fromkeys(("type", "entry_script", "program_arguments"), self._scalar),
            "append_row_to": self._bound,
            "code": self._code,
            "environment": self._environment,
        }
        rules = {**self._how, **dict.fromkeys(words, self._plain)}
        return {**rules, "input_data": self._bound, "task": self._each(task)}

    @cached_property
    def _jobs(self) -> Mapping[str, Mapping[str, Rule]]:
        """Return the rules by field of each job type that a workflow may submit."""
        settings = {
            **dict.fromkeys(("continue_on_step_failure", "force_rerun", "_source"), self._scalar),
            "default_compute": self._compute,
        }
        return {
            "command": self._command,
            "sweep": {**self._search, "trial": self._each(self._command)},
            "pipeline": {"jobs": self._named(self._step), "settings": self._each(settings)},
        }

    def _step(self, keys: Keys, step: Any) -> Iterator[Problem]:
        kinds: Mapping[str, Mapping[str, Rule]] = {
            "command": {**self._how, "component_id": self._component},
            "parallel": {**self._batches, "component_id": self._component},
            "sweep": {**self._search, "trial": self._component},
            "pipeline": {"component_id": self._component},
        }
        kind = str(step.get("type")) if isinstance(step, dict) else ""
        if kind not in kinds:
            yield self._problem((*keys, "type"), kind, f"one of: {', '.join(sorted(kinds))}")
            return
        every = {name: self._every_job[name] for name in ("inputs", "outputs", "compute_id")}
        texts = dict.fromkeys(("name", "type", "display_name", "comment", "_source"), self._scalar)
        yield from self._each({**every, **texts, "tags": self._tags, **kinds[kind]})(keys, step)
        if kind != "pipeline":
            yield from self._placed(keys, step)
            yield from self._limited(keys, kind, step)

    def _component(self, keys: Keys, component: Any) -> Iterator[Problem]:
        """Yield problems of a component that is neither a file of the repository nor inline."""
        if not isinstance(component, dict) or component.keys() - {"properties", "name"}:
            yield self._problem(keys, component, "a component in a file of the repository")
            return
        envelope = component.get("properties") or {}
        fixed = ("is_anonymous", "is_archived", "description")
        rules = {**dict.fromkeys(fixed, self._scalar), "component_spec": self._specification}
        yield from self._each({**rules, "tags": self._tags})(keys, envelope)

    def _specification(self, keys: Keys, component: Any) -> Iterator[Problem]:
        texts = (
            *("name", "version", "$schema", "display_name", "description", "type", "_source"),
            "is_deterministic",
        )
        rules: dict[str, Rule] = {
            **dict.fromkeys(texts, self._scalar),
            "tags": self._tags,
            "inputs": self._named(self._port),
            "outputs": self._named(self._port),
        }
        kind = component.get("type") if isinstance(component, dict) else None
        if kind == "pipeline":
            rules["jobs"] = self._named(self._step)
        elif kind == "parallel":
            rules |= self._batches
        else:
            extra = {"code": self._code, "environment": self._environment, "command": self._scalar}
            rules |= {**self._how, **extra}
        yield from self._each(rules)(keys[:-1], component)

    # Rules for single fields.

    def _compute(self, keys: Keys, value: Any) -> Iterator[Problem]:
        if value not in self.clusters:
            names = ", ".join(sorted(self.clusters)) or "none; `infra settings` reports the reason"
            yield self._problem(keys, value, f"a cluster of the stack files: {names}")

    def _placed(self, keys: Keys, job: Mapping[str, Any]) -> Iterator[Problem]:
        """Yield a problem without a compute: serverless jobs use the submitter's identity."""
        parent = self.body["properties"]
        default = parent.get("computeId") or (parent.get("settings") or {}).get("default_compute")
        if not (job.get("computeId") or (default and keys)):
            names = ", ".join(sorted(self.clusters))
            yield self._problem(
                (*keys, "compute"), "none", f"a cluster of the stack files: {names}"
            )

    def _limited(self, keys: Keys, kind: str, job: Mapping[str, Any]) -> Iterator[Problem]:
        """Yield a problem for each missing limit of a command or sweep.

        Azure ML's defaults are unlimited or above the bounds (a sweep: 1000 trials at once).
        """
        limits = _snake(job.get("limits"))
        required: dict[str, int] = {}
        if kind in ("command", "sweep"):
            required["timeout"] = self.bounds.hours * 3600
        if kind == "sweep":
            required["max_total_trials"] = self.bounds.trials
            total = _number(limits.get("max_total_trials"))
            if total is None or total > self.bounds.trials_at_once:
                required["max_concurrent_trials"] = self.bounds.trials_at_once
        for name, most in required.items():
            if limits.get(name) is None:
                yield self._problem((*keys, "limits", name), "none", _BOUND.format(most))

    def _at_most(self, most: int) -> Rule:
        def check(keys: Keys, value: Any) -> Iterator[Problem]:
            number = _number(value)
            if number is None or not 0 < number <= most:
                yield self._problem(keys, value, _BOUND.format(most))

        return check

    def _code(self, keys: Keys, value: Any) -> Iterator[Problem]:
        folder = assets.local_path(value, self.spec.folder) if isinstance(value, str) else None
        root = self.spec.boundary
        if folder is None or root is None or not folder.resolve().is_relative_to(root.resolve()):
            yield self._problem(keys, value, "a folder of the repository")

    def _environment(self, keys: Keys, value: Any) -> Iterator[Problem]:
        """Yield a problem for an environment that main does not declare.

        The identity that writes images would build it.
        """
        if not self._is_declared(value, "environment"):
            expected = "an environment that main declares, as azureml:NAME:VERSION"
            yield self._problem(keys, value, expected)

    def _is_declared(self, value: Any, kind: str) -> bool:
        match = _ASSET.fullmatch(value) if isinstance(value, str) else None
        return bool(match and assets.find(f"azureml:{match[1]}", kind, self.declared))

    def _input(self, keys: Keys, value: Any) -> Iterator[Problem]:
        """Yield problems of an input that is no literal, no data on main and no binding."""
        rules = dict.fromkeys(("value", "mode", "job_input_type", "type"), self._scalar)
        data = {"uri": self._data(value)}
        yield from self._each({**rules, **data})(keys, value)

    def _data(self, port: Any) -> Rule:
        kind = str(port.get("jobInputType") or port.get("job_input_type")) if port else ""

        def check(keys: Keys, value: Any) -> Iterator[Problem]:
            if ".".join(map(str, keys[:-1])) in self.spec.document.changed:
                return  # the caller overrides it
            family = "data" if kind in _DATA else "model" if kind in _MODELS else ""
            if not (family and self._is_declared(value, family)):
                expected = f"{family or 'data'} that main declares, as azureml:NAME:VERSION"
                yield self._problem(keys, value, expected)

        return check

    def _output(self, keys: Keys, value: Any) -> Iterator[Problem]:
        """Yield problems of an output with a path or an asset: Azure ML must choose the path."""
        kinds = ("job_output_type", "type")
        rules = {
            **dict.fromkeys(kinds, self._scalar),
            "mode": self._one_of(_WRITTEN),
            "value": self._handed_on,
        }
        yield from self._each(rules)(keys, value)

    def _handed_on(self, keys: Keys, value: Any) -> Iterator[Problem]:
        if not (isinstance(value, str) and _OF_PIPELINE.fullmatch(value)):
            yield self._problem(keys, value, "an output of the pipeline: ${{parent.outputs.NAME}}")

    def _bound(self, keys: Keys, value: Any) -> Iterator[Problem]:
        if not (isinstance(value, str) and _OF_STEP.fullmatch(value)):
            yield self._problem(keys, value, "${{inputs.NAME}} or ${{outputs.NAME}}")

    def _port(self, keys: Keys, value: Any) -> Iterator[Problem]:
        """Yield problems of a component's port; data may have no default, which would be a URL."""
        words = ["optional", "description", "mode"]
        if isinstance(value, dict) and str(value.get("type")) not in _DATA | _MODELS:
            words += ["default", "min", "max", "enum"]
        kind = self._one_of(_DATA | _MODELS | _VALUES)
        yield from self._each({**dict.fromkeys(words, self._plain), "type": kind})(keys, value)

    def _tags(self, keys: Keys, value: Any) -> Iterator[Problem]:
        for name in value if isinstance(value, dict) else ():
            if name.lower().startswith(RESERVED):
                yield self._problem(
                    (*keys, name),
                    value[name],
                    f"a tag that begins with none of {', '.join(RESERVED)}",
                )
        yield from self._plain(keys, value)

    def _variables(self, keys: Keys, value: Any) -> Iterator[Problem]:
        for name in value if isinstance(value, dict) else ():
            if name.upper().startswith(_OF_THE_AGENT):
                yield self._problem(
                    (*keys, name), value[name], "a name that Azure ML's agent does not read"
                )
        yield from self._plain(keys, value)

    # Rules for any mapping or scalar.

    def _each(self, rules: Mapping[str, Rule]) -> Rule:
        """Return a rule for a mapping that allows only these fields, each with its rule."""

        def check(keys: Keys, value: Any) -> Iterator[Problem]:
            if not isinstance(value, dict):
                yield self._problem(keys, value, f"a mapping of {', '.join(sorted(rules))}")
                return
            for field, item in _snake(value).items():
                item_keys = (*keys, _WRITTEN_AS.get(field, field))
                if field in rules:
                    yield from rules[field](item_keys, item)
                else:
                    yield self._problem(item_keys, item, "no such field")

        return check

    def _of(self, *names: str) -> Rule:
        return self._each(dict.fromkeys(names, self._scalar))

    def _named(self, rule: Rule) -> Rule:
        """Return a rule that checks every value of a mapping with any valid names."""

        def check(keys: Keys, value: Any) -> Iterator[Problem]:
            for name, item in value.items() if isinstance(value, dict) else ():
                if not _NAME.fullmatch(name):
                    yield self._problem((*keys, name), name, "a name of letters, digits, - and _")
                yield from rule((*keys, name), item)

        return check

    def _one_of(self, values: Collection[str]) -> Rule:
        def check(keys: Keys, value: Any) -> Iterator[Problem]:
            if value not in values:
                yield self._problem(keys, value, f"one of: {', '.join(sorted(values))}")

        return check

    def _scalar(self, keys: Keys, value: Any) -> Iterator[Problem]:
        if isinstance(value, dict | list):
            yield self._problem(keys, value, "a text or a number")
        elif isinstance(value, str) and _ADDRESS.match(value):
            yield self._problem(keys, value, "a literal value, not a URL of Azure's storage")

    def _plain(self, keys: Keys, value: Any) -> Iterator[Problem]:
        """Yield a problem for each nested value that is a URL of Azure's storage."""
        if isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                yield from self._plain((*keys, key), item)
        else:
            yield from self._scalar(keys, value)

    def _problem(self, keys: Keys, value: Any, expected: str) -> Problem:
        hint = "leave it out, or run it with your own rights: ml run SPEC --on azure"
        # Do not print a mapping: it may contain the text of a file that the spec references.
        text = "{…}" if isinstance(value, dict) else "[…]" if isinstance(value, list) else value
        field = ".".join(map(str, keys))
        actual = f"`{field}: {text}` is not allowed in a job that a workflow submits"
        return Problem("forbidden-in-workflow", actual[:300], expected, hint, self._place(keys))

    def _place(self, keys: Keys) -> Place:
        """Return the line of a field, in the referenced file if it is there; skip missing keys."""
        node: YamlNode = self.spec
        for key in keys:
            written = node.get(key)
            if written is None:
                continue
            file = (
                assets.read_referenced(written, node.folder) if isinstance(written, str) else None
            )
            node = file or node.child(key)
        return node.place()


def _snake(value: Any) -> dict[str, Any]:
    """Return a mapping with its keys in snake case, as in a spec; {} for any other value."""
    return {
        re.sub("(?<=[a-z])[A-Z]", lambda match: f"_{match[0]}", name).lower(): item
        for name, item in (value.items() if isinstance(value, dict) else ())
    }


def _number(value: Any) -> int | None:
    """Parse an integer, or an ISO 8601 duration as seconds rounded up; None for other values."""
    match = _DURATION.fullmatch(str(value))
    if match is None:
        return int(value) if re.fullmatch(r"[0-9]{1,9}", str(value)) else None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return math.ceil(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


# Field of a request → its different name in a spec.
_WRITTEN_AS = {
    **{"compute_id": "compute", "code_id": "code", "environment_id": "environment"},
    **{"component_id": "component", "uri": "path", "asset_name": "name"},
    **{"job_input_type": "type", "job_output_type": "type", "asset_version": "version"},
}
