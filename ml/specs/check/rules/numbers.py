"""Numbers that Azure ML does not accept: too small, too large, or not whole."""

from __future__ import annotations

from collections.abc import Iterator

from ml.specs.check.references import fields
from ml.specs.check.rules.rule import Finding, Subject, rule
from ml.specs.check.rules.security import MAX_TIMEOUT_MS

_ANY = float("inf")

# The last key of a field → the least that Azure ML takes there. In job and component specs only;
# the values are the documents' (reference-yaml-job-command, -parallel, -sweep, -automl).
LEAST: dict[str, int] = {
    "instance_count": 1,
    "max_instance_count": 1,
    "process_count_per_instance": 1,
    "worker_count": 1,
    "parameter_server_count": 0,
    "timeout": 1,  # azure-ai-ml drops a 0: the job has no limit
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
# Fields whose name is not enough: the last two keys. Probes, requests and the collector are those
# of reference-yaml-deployment-managed-online, mini-batches those of reference-yaml-job-parallel.
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
# "300 seconds" for an endpoint on Kubernetes (how-to-manage-quotas).
MAX_KUBERNETES_MS = 300_000
# Other whole numbers: azure-ai-ml's schemas (1.35, `fields.Int`) cut what follows the point.
_WHOLE = frozenset(
    {"max_total_trials", "max_concurrent_trials", "max_cores_per_trial", "cv_step_size"}
    | {"n_cross_validations", "truncation_percentage", "seed", "interval", "forecast_horizon"}
    | {"max_iteration_count", "number_of_epochs", "training_batch_size", "validation_batch_size"}
    | {"early_stopping_delay", "min_node_count", "max_node_count", "idle_time_before_scale_down"}
    | {"polling_interval"}
)
_FRACTIONS = frozenset({"slack_factor", "slack_amount", "sampling_rate"})


@rule(
    "number-out-of-range",
    scope="spec",
    source="reference-yaml-job-command and its siblings; azure-ai-ml checks the type alone",
)
def number_out_of_range(subject: Subject) -> Iterator[Finding]:
    """Counts are positive, times and thresholds within the service's limits, and all are whole."""
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
