"""Converts fields that jobs, trials and steps share to the types of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml.core.documents import Key
from ml.core.errors import Place, Problem, UserError
from ml.specs.plan.plans import (
    CommandPlan,
    Dimension,
    Distribution,
    EarlyTermination,
    Frozen,
    SweepPlan,
)
from ml.specs.yaml_node import Fields

# "max_total_trials … between 1 and 1000. Default value is 1000" (reference-yaml-job-sweep).
_TRIALS = 1000
_PARTS = frozenset({"resources", "limits", "distribution", "training", "featurization"})


def sweep(owner: Fields, trial: CommandPlan) -> SweepPlan:
    """Return the plan of a sweep; it takes its name and experiment from the trial."""
    sampling = owner.get("sampling_algorithm") or "random"
    algorithm: dict[str, Any] = sampling if isinstance(sampling, dict) else {"type": sampling}
    limits = owner.get("limits") or {}
    total = int(limits.get("max_total_trials") or _TRIALS)
    return SweepPlan(
        place=owner.place(),
        display_name=trial.display_name,
        experiment=trial.experiment,
        trial=trial,
        search_space=Frozen(
            (str(name), dimension(owner, "search_space", name))
            for name in owner.get("search_space") or {}
        ),
        # The SDK has validated these words, which may be in upper or lower case.
        algorithm=str(algorithm["type"]).lower(),  # type: ignore[arg-type]
        goal=str(owner.get("objective", "goal")).lower(),  # type: ignore[arg-type]
        primary_metric=str(owner.get("objective", "primary_metric")),
        seed=algorithm.get("seed"),
        rule=str(algorithm.get("rule") or "random").lower(),  # type: ignore[arg-type]
        max_total_trials=total,
        # "Defaults to max_total_trials" (reference-yaml-job-sweep).
        max_concurrent_trials=int(limits.get("max_concurrent_trials") or total),
        timeout_s=seconds(limits.get("timeout")),
        trial_timeout_s=seconds(limits.get("trial_timeout")),
        early_termination=early_termination(owner),
        tags=tags(owner),
        description=text(owner.get("description")),
        places=places(owner),
    )


def dimension(owner: Fields, *keys: Key) -> Dimension:
    """Return the hyperparameter at `keys`; a `choice` may contain nested spaces.

    Raises UserError if the value is not a mapping, for example an expression.
    """
    setting = owner.get(*keys)
    if not isinstance(setting, dict):
        expected = "a distribution with its `type`, such as `type: uniform`"
        raise UserError(Problem("wrong-value", f"`{setting}`", expected, place=owner.place(*keys)))
    kind, name = str(setting["type"]).lower(), str(keys[-1])
    if kind == "choice":
        values = [
            _nested(owner, *keys, "values", index) if isinstance(value, dict) else value
            for index, value in enumerate(setting.get("values") or [])
        ]
        return Dimension(name, kind, tuple(values), owner.place(*keys))
    order = ("min_value", "max_value", "mu", "sigma", "upper", "q")
    numbers = tuple(setting[key] for key in order if key in setting)
    return Dimension(name, kind, numbers, owner.place(*keys))


def _nested(owner: Fields, *keys: Key) -> Mapping[str, object]:
    return Frozen(
        (str(key), dimension(owner, *keys, key) if isinstance(value, dict) else value)
        for key, value in owner.get(*keys).items()
    )


def distribution(owner: Fields, *keys: Key) -> Distribution | None:
    """Return the `distribution` (launcher and processes) at `keys`; None if there is none."""
    setting = owner.get(*keys)
    if not isinstance(setting, dict):
        return None
    workers = setting.get("worker_count")
    return Distribution(
        type=str(setting.get("type", "")).strip().lower(),
        process_count_per_instance=int(setting.get("process_count_per_instance") or 1),
        place=owner.place(*keys),
        worker_count=None if workers is None else int(workers),
        parameter_server_count=int(setting.get("parameter_server_count") or 0),
    )


def early_termination(owner: Fields) -> EarlyTermination | None:
    """Return the early-termination policy of a sweep; None if there is none."""
    setting = owner.get("early_termination")
    if not isinstance(setting, dict):
        return None
    factor, amount = setting.get("slack_factor"), setting.get("slack_amount")
    return EarlyTermination(
        type=str(setting["type"]).lower(),
        place=owner.place("early_termination"),
        evaluation_interval=int(setting.get("evaluation_interval") or 1),
        delay_evaluation=int(setting.get("delay_evaluation") or 0),
        slack_factor=float(factor) if factor else None,
        slack_amount=float(amount) if amount else None,
        truncation_percentage=setting.get("truncation_percentage"),
    )


def places(owner: Fields) -> Mapping[str, Place]:
    """Map every field of a job, and every setting in a field of `_PARTS`, to its line."""
    lines: dict[str, Place] = {}
    for field, value in (owner.get() or {}).items():
        lines[str(field)] = owner.place(field)
        for key in value if isinstance(value, dict) and field in _PARTS else ():
            lines[f"{field}.{key}"] = owner.place(field, key)
    return Frozen(lines)


def tags(owner: Fields) -> Mapping[str, str]:
    """Return the tags of a job, with keys and values as text."""
    return Frozen((str(key), text(value)) for key, value in (owner.get("tags") or {}).items())


def seconds(value: Any) -> float | None:
    """Return a time limit in seconds; None if there is none."""
    return float(value) if value else None


def text(value: Any) -> str:
    """Return a value as text; "" for None."""
    return "" if value is None else str(value)
