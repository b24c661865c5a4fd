"""Checks names and numbers: typos, undefined versions of assets, values out of range.

A likely typo is an error. A reference that may exist elsewhere is a warning: a name that differs in
a digit, another version, and data, which runs can register.
"""

from __future__ import annotations

from collections.abc import Iterator

from ml.core import repository
from ml.core.documents import Key, strings
from ml.core.errors import Severity, nearest
from ml.specs.assets import assets
from ml.specs.check.nodes import FAMILIES, fields
from ml.specs.check.rules.rule import Finding, Subject, rule
from ml.specs.check.rules.security import MAX_TIMEOUT_MS
from ml.specs.kinds import MODEL_TYPES
from ml.specs.sdk.load import Spec

_COMPUTE = frozenset({"compute", "default_compute"})
_ANY = float("inf")
# Last key of a field in a job or component spec → the smallest valid value
# (reference-yaml-job-command, -parallel, -sweep, -automl).
LEAST: dict[str, int] = {
    "instance_count": 1,
    "max_instance_count": 1,
    "process_count_per_instance": 1,
    "worker_count": 1,
    "parameter_server_count": 0,
    "timeout": 1,  # azure-ai-ml drops a 0, which would leave the job without a limit
    "trial_timeout": 1,
    "timeout_minutes": 1,
    "trial_timeout_minutes": 1,
    "max_trials": 1,
    "n_cross_validations": 2,
    "max_nodes": 1,
    "evaluation_interval": 0,
    "delay_evaluation": 0,
    "slack_factor": 0,
    "slack_amount": 0,
    "max_concurrency_per_instance": 1,
    "max_retries": 0,
    "mini_batch_error_threshold": -1,
    "error_threshold": -1,
    "number_of_workers": 1,
    "port": 1,
    "min_instances": 0,
    "max_instances": 0,
    "mini_batch_size": 1,
}
_MOST = {"port": 65_535}
# Last two keys of a field → smallest and largest valid value, where one key is ambiguous
# (reference-yaml-deployment-managed-online, reference-yaml-job-parallel).
BETWEEN: dict[tuple[str, str], tuple[float, float]] = {
    **{
        (probe, key): (1, 1 if (probe, key) == ("liveness_probe", "success_threshold") else _ANY)
        for probe in ("liveness_probe", "readiness_probe")
        for key in ("initial_delay", "period", "timeout", "success_threshold", "failure_threshold")
    },
    ("request_settings", "request_timeout_ms"): (1, MAX_TIMEOUT_MS),
    ("request_settings", "max_concurrent_requests_per_instance"): (1, _ANY),
    ("request_settings", "max_queue_wait_ms"): (0, _ANY),
    ("data_collector", "sampling_rate"): (0, 1),
    ("retry_settings", "timeout"): (1, 259_200),
    ("forecasting", "forecast_horizon"): (1, _ANY),
    **{
        ("forecasting", key): (1, _ANY)
        for key in ("cv_step_size", "seasonality", "target_lags", "target_rolling_window_size")
    },
}
# The longest request timeout of an endpoint on Kubernetes: 300 s (how-to-manage-quotas).
MAX_KUBERNETES_MS = 300_000
# Further integer fields, whose fractions azure-ai-ml 1.35 would truncate (`fields.Int`).
_WHOLE = frozenset(
    {"max_total_trials", "max_concurrent_trials", "max_cores_per_trial", "cv_step_size"}
    | {"n_cross_validations", "truncation_percentage", "seed", "interval", "forecast_horizon"}
    | {"max_iteration_count", "number_of_epochs", "training_batch_size", "validation_batch_size"}
    | {"early_stopping_delay", "min_node_count", "max_node_count", "idle_time_before_scale_down"}
    | {"polling_interval"}
)
_FRACTIONS = frozenset({"slack_factor", "slack_amount", "sampling_rate"})


@rule(
    "misspelt-cluster",
    scope="spec",
    severity="warning",
    source="a job waits for ever, or is refused, where its compute does not exist",
)
def misspelt_cluster(subject: Subject) -> Iterator[Finding]:
    """No compute's name is a misspelling of a declared cluster."""
    declared = {cluster.name for cluster in subject.clusters}
    for keys, text in fields(subject.spec.document.data):
        if keys[-1] not in _COMPUTE or not isinstance(text, str) or "${{" in text:
            continue
        name = text.removeprefix("azureml:")
        if name not in declared and (near := nearest(name, declared)):
            expected = f"a cluster of infra/Pulumi.ENV.yaml: {', '.join(sorted(declared))}"
            hint = f"did you mean `azureml:{near[0]}`?"
            actual = f"no stack file declares `{name}`"
            yield Finding(keys, actual, expected, hint, _severity(name, near[0]))


@rule(
    "unknown-asset",
    scope="spec",
    severity="warning",
    source="a job is refused where an asset that it names is not registered",
)
def unknown_asset(subject: Subject) -> Iterator[Finding]:
    """References to this repository's assets use names and versions that its specs define."""
    versions: dict[tuple[str, str], set[str]] = {}
    for asset in assets.definitions(repository.root(subject.spec.file)):
        versions.setdefault((asset.kind, asset.name), set()).add(asset.version)
    for keys, text in strings(subject.spec.document.data):
        kind, reference = _kind(subject.spec, keys), assets.parse(text)
        if kind is None or reference is None or "${{" in text:
            continue
        if defined := versions.get((kind, reference.name)):
            if not reference.version and reference.label != "latest":
                actual = f"`{text}` has no version"
                expected = f"azureml:{reference.name}:VERSION, or @latest"
                yield Finding(keys, actual, expected, "the SDK refuses it when it submits the job")
            elif reference.version and reference.version not in defined:
                newest = max(defined, key=assets.version_key)
                actual = f"no {kind} spec of this repository defines `{text}`"
                expected = f"version {', '.join(sorted(defined, key=assets.version_key))}"
                hint = f"azureml:{reference.name}:{newest}, or register this version first"
                yield Finding(keys, actual, expected, hint)
        elif near := nearest(reference.name, {name for family, name in versions if family == kind}):
            actual = f"no {kind} spec of this repository is named `{reference.name}`"
            hint = f"did you mean `{near[0]}`?"
            severity = "warning" if kind == "data" else _severity(reference.name, near[0])
            yield Finding(keys, actual, f"a name of {kind}", hint, severity)


def _severity(name: str, near: str) -> Severity:
    """Return "error" for a likely typo: two letters swapped, or one missing or added.

    Else return "warning": `ml-gpu` and `ml-cpu` may be different things.
    """
    short, long = sorted((name, near), key=len)
    one_less = {
        long[:place] + long[place + 1 :] for place, letter in enumerate(long) if letter.isalpha()
    }
    swapped = {
        near[:place] + near[place : place + 2][::-1] + near[place + 2 :]
        for place in range(len(near) - 1)
    }
    return "error" if name in swapped or short in one_less else "warning"


def _kind(spec: Spec, keys: tuple[Key, ...]) -> str | None:
    """Return the kind of asset ("data", "environment", "component") that a field references.

    None for other fields and for models, which runs register.
    """
    if not keys or "tags" in keys or "environment_variables" in keys:
        return None
    if keys[-1] == "path" and "inputs" in keys:
        return "data" if str(spec.get(*keys[:-1], "type")) not in MODEL_TYPES else None
    family = FAMILIES.get(str(keys[-1]))
    return family if family in {"environment", "component"} else None


@rule(
    "number-out-of-range",
    scope="spec",
    source="reference-yaml-job-command and its siblings; azure-ai-ml checks the type alone",
)
def number_out_of_range(subject: Subject) -> Iterator[Finding]:
    """Counts, times and thresholds are within the service's limits; integers have no fraction."""
    spec = subject.spec
    is_kubernetes = "kubernetes" in f"{spec.get('$schema')}{spec.get('type')}".lower()
    for keys, value in fields(spec.document.data):
        key, pair = str(keys[-1]), (str(keys[-2:][0]), str(keys[-1]))
        low, high = BETWEEN.get(pair, (LEAST.get(key, -_ANY), _MOST.get(key, _ANY)))
        high = MAX_KUBERNETES_MS if is_kubernetes and high == MAX_TIMEOUT_MS else high
        is_known = key in LEAST or key in _WHOLE or pair in BETWEEN
        if not is_known or isinstance(value, bool) or not isinstance(value, str | int | float):
            continue
        try:
            number = float(value)
        except ValueError:
            continue  # the SDK refuses it, or it has a unit
        if isinstance(value, float) and not (number.is_integer() or key in _FRACTIONS):
            yield Finding(keys, f"`{key}` is {value}", "a whole number", "round it")
        elif not low <= number <= high:
            expected = f"at least {low:g}" if high == _ANY else f"{low:g} to {high:,}"
            hint = f"{key}: {min(high, max(low, number)):.0f}"
            yield Finding(keys, f"`{key}` is {value}", expected, hint)
