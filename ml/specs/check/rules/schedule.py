"""Checks schedules: the trigger (cron expression or recurrence) and the job that they create."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ml.specs.assets import assets
from ml.specs.check.rules.rule import Finding, Subject, rule
from ml.specs.expressions import did_you_mean
from ml.specs.kinds import kind_of
from ml.specs.sdk.load import Spec, time_zones
from ml.specs.yaml_node import YamlNode

_YAML = "reference-yaml-schedule"
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
# The five fields of cron: name, minimum, maximum, names of values, number of the first name.
_FIELDS: tuple[tuple[str, int, int, list[str], int], ...] = (
    ("minute", 0, 59, [], 0),
    ("hour", 0, 23, [], 0),
    ("day of month", 1, 31, [], 0),
    ("month", 1, 12, _MONTHS, 1),
    ("day of week", 0, 7, _DAYS, 0),
)


def cron_fault(expression: str) -> tuple[str, str] | None:
    """Return (error, expected) of an invalid cron expression; None if it is valid."""
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


# The families of specs that may have triggers; of computes, only instances have them.
_TRIGGERED = ("schedule", "compute", "feature_set")


def _triggers(spec: Spec) -> Iterator[YamlNode]:
    """Yield the triggers of a spec."""
    if spec.kind.family == "schedule":
        yield spec.child("trigger")
    elif spec.kind.family == "feature_set":
        yield spec.child("materialization_settings", "schedule")
    else:
        starts = spec.get("schedules", "compute_start_stop")
        for number in range(len(starts) if isinstance(starts, list) else 0):
            yield spec.child("schedules", "compute_start_stop", number, "trigger")


@rule("bad-cron", scope=_TRIGGERED, source=f"{_YAML}: cron expression")
def bad_cron(subject: Subject) -> Iterator[Finding]:
    """A cron expression has five valid fields; day of month and month are `*`."""
    for trigger in _triggers(subject.spec):
        expression = trigger.get("expression")
        wrong = cron_fault(expression) if isinstance(expression, str) else None
        if not wrong and isinstance(expression, str) and {*expression.split()[2:4]} - {"*", "?"}:
            wrong = "Azure ML ignores the day of month and the month", "`*` in both"
        if wrong:
            keys, hint = (*trigger.keys, "expression"), "`15 16 * * 1` is 16:15 on Mondays"
            yield Finding(keys, f"`{expression}`: {wrong[0]}", wrong[1], hint)


@rule("bad-recurrence", scope=_TRIGGERED, source=f"{_YAML}: recurrence pattern")
def bad_recurrence(subject: Subject) -> Iterator[Finding]:
    """A recurrence has valid hours, minutes and days, and only those of its frequency."""
    for trigger in _triggers(subject.spec):
        yield from _recurrence(trigger)


def _recurrence(trigger: YamlNode) -> Iterator[Finding]:
    """Yield the findings about the recurrence of one trigger."""
    frequency, pattern = str(trigger.get("frequency")).lower(), trigger.get("schedule")
    for key, expected in {"week_days": "week", "month_days": "month"}.items():
        if isinstance(pattern, dict) and pattern.get(key) and frequency != expected:
            actual = f"`{key}` with `frequency: {frequency}`"
            yield Finding((*trigger.keys, "schedule", key), actual, f"`frequency: {expected}`")
    start, end = (str(trigger.get(key) or "") for key in ("start_time", "end_time"))
    if start and end and end.replace(" ", "T") <= start.replace(" ", "T"):
        yield Finding((*trigger.keys, "end_time"), f"it ends at {end}", f"a time after {start}")
    interval = trigger.get("interval")
    if isinstance(interval, int) and not isinstance(interval, bool) and interval < 1:
        keys = (*trigger.keys, "interval")
        yield Finding(keys, f"`interval` is {interval}", "at least 1", "interval: 1")
    for key, (low, high) in {"hours": (0, 23), "minutes": (0, 59), "month_days": (1, 31)}.items():
        keys, values = (*trigger.keys, "schedule", key), trigger.get("schedule", key)
        for value in values if isinstance(values, list) else [values]:
            if isinstance(value, int) and not low <= value <= high:
                yield Finding(keys, f"`{key}` has {value}", f"{low} to {high}", f"delete {value}")


@rule(
    "schedule-job",
    scope="schedule",
    source="azure-ai-ml 1.35 JobSchedule._to_rest_object: `Unsupported job type`",
)
def schedule_job(subject: Subject) -> Iterator[Finding]:
    """The job that a schedule creates is a pipeline."""
    written = subject.spec.get("create_job")
    inside = written.get("job") if isinstance(written, dict) else written
    document = written
    if isinstance(inside, str):
        part = assets.read_referenced(inside, subject.spec.folder)
        document = part.get() if part is not None else None
    kind = kind_of(document)
    if kind is not None and kind.is_job and kind.type != "pipeline":
        hint = "put the job into a pipeline of one step, and name that"
        yield Finding(("create_job",), f"the schedule creates a {kind}", "a pipeline job", hint)


@rule("bad-time-zone", scope=_TRIGGERED, source="azure-ai-ml 1.35 constants.TimeZone")
def bad_time_zone(subject: Subject) -> Iterator[Finding]:
    """A trigger's time zone is a Windows time zone name."""
    for trigger in _triggers(subject.spec):
        zone, keys = trigger.get("time_zone"), (*trigger.keys, "time_zone")
        if isinstance(zone, str) and zone.lower() not in time_zones():
            hint = "time_zone: W. Europe Standard Time"
            expected = "UTC, or the Windows name of a time zone"
            yield Finding(keys, f"Azure ML has no time zone `{zone}`", expected, hint)


@rule("schedule-input", scope="schedule", source="azure-ai-ml 1.35 BaseCreateJobSchema.make")
def schedule_input(subject: Subject) -> Iterator[Finding]:
    """A schedule sets only inputs that its job declares, data as data and literals as literals."""
    written = subject.spec.get("create_job", "job")
    job = assets.read_referenced(written, subject.spec.folder) if isinstance(written, str) else None
    declared = job.mapping("inputs") if job else {}
    for name, value in subject.spec.mapping("create_job", "inputs").items() if job else ():
        keys = ("create_job", "inputs", name)
        if name not in declared:
            hint = did_you_mean(str(name), map(str, declared))
            yield Finding(keys, f"the job has no input `{name}`", ", ".join(declared), hint)
        elif isinstance(value, dict) != isinstance(declared[name], dict):
            expected = "data" if isinstance(declared[name], dict) else "a literal"
            yield Finding(keys, f"`{name}` is {value!r}", f"{expected}, as in the job")
