"""Counts, sizes and times that are too small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ml.core.documents import Key
from ml.specs.check.rules.registry import Finding, Subject, rule

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
    if subject.spec.kind.family in {"job", "component", "schedule", "online_deployment"} | {
        "batch_deployment"
    }:
        yield from _walk(subject.spec.document.data, ())


def _walk(value: Any, keys: tuple[Key, ...]) -> Iterator[Finding]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, (*keys, index))
    if not isinstance(value, dict):
        return
    for key, below in value.items():
        least = LEAST.get(key) if isinstance(key, str) else None
        if isinstance(below, int | float) and not isinstance(below, bool):
            if least is not None and below < least:
                yield Finding((*keys, key), f"`{key}` is {below}", f"at least {least}")
        elif key not in _OPEN:
            yield from _walk(below, (*keys, key))
