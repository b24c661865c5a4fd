"""Numbers that Azure ML does not accept: counts that are too small."""

from __future__ import annotations

from collections.abc import Iterator

from ml.core.documents import walk
from ml.specs.check.rules.rule import Finding, Subject, rule

# The last key of a field → the least that Azure ML takes there. In job and component specs only;
# the values are the documents' (reference-yaml-job-command, -parallel, -sweep, -automl).
LEAST: dict[str, int] = {
    "instance_count": 1,
    "max_instance_count": 1,
    "process_count_per_instance": 1,
    "worker_count": 1,
    "parameter_server_count": 0,
    "timeout": 0,
    "trial_timeout": 0,
    "timeout_minutes": 1,
    "trial_timeout_minutes": 1,
    "max_trials": 1,
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
}
_FAMILIES = frozenset({"job", "component", "schedule", "online_deployment", "batch_deployment"})
# The keys below these are free names, not fields.
_OPEN = frozenset(
    {"inputs", "outputs", "environment_variables", "tags", "properties", "search_space", "conf"}
)


@rule(
    "number-too-small",
    scope="spec",
    source="reference-yaml-job-command and its siblings; azure-ai-ml checks the type alone",
)
def number_too_small(subject: Subject) -> Iterator[Finding]:
    """Counts of instances, processes and trials are positive, times and thresholds not negative."""
    if subject.spec.kind.family not in _FAMILIES:
        return
    for keys, value in walk(subject.spec.document.data):
        least = LEAST.get(str(keys[-1])) if keys and not _OPEN.intersection(keys) else None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if least is not None and is_number and value < least:
            yield Finding(keys, f"`{keys[-1]}` is {value}", f"at least {least}")
