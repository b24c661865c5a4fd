"""Numbers that Azure ML does not accept: counts that are too small, and times of a schedule."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ml.core.documents import walk
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


# Schedules: a cron expression or a recurrence.

_YAML = "reference-yaml-schedule"
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
# The five fields: name, least, most, names, the number of the first name.
_FIELDS: tuple[tuple[str, int, int, list[str], int], ...] = (
    ("minute", 0, 59, [], 0),
    ("hour", 0, 23, [], 0),
    ("day of month", 1, 31, [], 0),
    ("month", 1, 12, _MONTHS, 1),
    ("day of week", 0, 7, _DAYS, 0),
)


def cron_fault(expression: str) -> tuple[str, str] | None:
    """The fault of a cron expression and the expected form; None when it is valid."""
    parts = expression.split()
    if len(parts) != len(_FIELDS):
        return f"{len(parts)} fields", "minute, hour, day of month, month, day of week"
    for part, (name, low, high, names, first) in zip(parts, _FIELDS, strict=True):
        for item in part.split(","):
            match = re.fullmatch(r"(\*|\?|\w+(?:-\w+)?)(?:/(\d+))?", item)
            if match is None:
                return f"`{item}` as the {name}", f"`*`, {low}–{high}, a list, a range or `*/N`"
            if match[2] is not None and int(match[2]) == 0:
                return f"a step of 0 in the {name}", "a step of 1 or more"
            numbers = []
            for word in [] if match[1] in "*?" else match[1].split("-"):
                number = int(word) if word.isdecimal() else -1
                if word.lower() in names:
                    number = names.index(word.lower()) + first
                if not low <= number <= high:
                    return f"`{word}` as the {name}", f"{low} to {high}"
                numbers.append(number)
            if len(numbers) == 2 and numbers[0] > numbers[1] and not names:
                return f"`{item}` as the {name}", "a range from low to high"
    return None


@rule("bad-cron", scope="spec", source=f"{_YAML}: cron expression")
def bad_cron(subject: Subject) -> Iterator[Finding]:
    """A cron expression has five fields, each in its range."""
    for at in (("trigger",), ("schedule",)):
        trigger = subject.spec.get(*at)
        expression = trigger.get("expression") if isinstance(trigger, dict) else None
        wrong = cron_fault(expression) if isinstance(expression, str) else None
        if wrong:
            keys = (*at, "expression")
            hint = "`15 16 * * 1` is 16:15 on Mondays"
            yield Finding(keys, f"`{expression}`: {wrong[0]}", wrong[1], hint)


@rule("bad-recurrence", scope="spec", source=f"{_YAML}: recurrence pattern")
def bad_recurrence(subject: Subject) -> Iterator[Finding]:
    """A recurrence names hours, minutes and days that clocks and calendars have."""
    ranges = {"hours": (0, 23), "minutes": (0, 59), "month_days": (1, 31)}
    for at in (("trigger",), ("schedule",)):
        trigger = subject.spec.get(*at)
        if not isinstance(trigger, dict):
            continue
        interval = trigger.get("interval")
        if isinstance(interval, int) and not isinstance(interval, bool) and interval < 1:
            yield Finding((*at, "interval"), f"`interval` is {interval}", "at least 1")
        pattern = trigger.get("schedule")
        for key, (low, high) in ranges.items():
            values = pattern.get(key) if isinstance(pattern, dict) else None
            for value in values if isinstance(values, list) else [values]:
                if isinstance(value, int) and not low <= value <= high:
                    message = f"`{key}` holds {value}"
                    yield Finding((*at, "schedule", key), message, f"{low} to {high}")
