"""A checked spec → a frozen plan, every reference in it resolved. Pure: nothing is created."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ml.specs import check, repository
from ml.specs.bindings import Bindings
from ml.specs.frozen import Frozen
from ml.specs.lines import Key
from ml.specs.load import Spec
from ml.specs.plan import CommandPlan, Dimension, Distribution, EarlyTermination, Plan, SweepPlan
from ml.specs.problems import Exit, Place, Problem, Refused, errors

# "max_total_trials … between 1 and 1000. Default value is 1000" (reference-yaml-job-sweep).
_TRIALS = 1000


def plan(spec: Spec, root: Path | None = None) -> Plan:
    """The plan of a command or sweep job; Refused with every error at once.

    `root` is the repository whose specs define `azureml:` assets. A kind of job that nothing here
    can run, and code of another machine, are refused with exit code 33.
    """
    found = errors(check.check(spec))
    if found:
        raise Refused(*found)
    if not spec.kind.is_job or spec.kind.type not in {"command", "sweep"}:
        _refuse_kind(spec)
    bindings = Bindings(spec, root or repository.root(spec.file))
    made = _sweep(spec, bindings) if spec.kind.type == "sweep" else _command(spec, bindings)
    if bindings.problems:
        remote = all(problem.code == "remote-code" for problem in bindings.problems)
        code = Exit.CANNOT_HONOUR if remote else Exit.WRONG_CALL
        raise Refused(*bindings.problems, exit_code=code)
    return made


def _refuse_kind(spec: Spec) -> NoReturn:
    if spec.kind.is_job:
        found, code = f"this backend does not run {spec.kind}s yet", Exit.CANNOT_HONOUR
    else:
        found, code = f"this is the spec of {spec.kind.with_article}, not of a job", Exit.WRONG_CALL
    hint = f"`ml check {spec.document.shown}` checks it all the same"
    problem = Problem("unsupported-kind", found, "a command or sweep job", hint, spec.place("type"))
    raise Refused(problem, exit_code=code)


def _command(spec: Spec, bindings: Bindings, *at: Key) -> CommandPlan:
    """The command job at the root, or the trial of a sweep at `at`."""
    resources = spec.get(*at, "resources") or spec.get("resources") or {}
    variables = spec.get(*at, "environment_variables") or {}
    return CommandPlan(
        place=spec.place(),
        display_name=_display_name(spec),
        experiment=_experiment(spec),
        command=str(spec.get(*at, "command")),
        code=bindings.code(*at, "code"),
        environment=bindings.environment(*at, "environment"),
        compute=str(spec.get("compute") or ""),
        environment_variables=Frozen((str(k), _text(v)) for k, v in variables.items()),
        inputs=Frozen((str(name), bindings.input(name)) for name in spec.get("inputs") or {}),
        outputs=Frozen((str(name), bindings.output(name)) for name in spec.get("outputs") or {}),
        timeout_s=_seconds(spec.get("limits", "trial_timeout" if at else "timeout")),
        instance_count=int(resources.get("instance_count") or 1),
        distribution=_distribution(spec, *at, "distribution"),
        tags=_tags(spec),
        places=_places(spec, *at),
    )


def _sweep(spec: Spec, bindings: Bindings) -> SweepPlan:
    written = spec.get("sampling_algorithm") or "random"
    algorithm: dict[str, Any] = written if isinstance(written, dict) else {"type": written}
    limits = spec.get("limits") or {}
    total = int(limits.get("max_total_trials") or _TRIALS)
    return SweepPlan(
        place=spec.place(),
        display_name=_display_name(spec),
        experiment=_experiment(spec),
        trial=_command(spec, bindings, "trial"),
        search_space=Frozen(
            (str(name), dimension(spec, "search_space", name))
            for name in spec.get("search_space") or {}
        ),
        # The SDK has checked that these are words that the plan knows, in any case.
        algorithm=str(algorithm["type"]).lower(),  # type: ignore[arg-type]
        goal=str(spec.get("objective", "goal")).lower(),  # type: ignore[arg-type]
        primary_metric=str(spec.get("objective", "primary_metric")),
        seed=algorithm.get("seed"),
        rule=str(algorithm.get("rule") or "random").lower(),  # type: ignore[arg-type]
        max_total_trials=total,
        # Without a limit Azure ML starts all at once; a machine is the limit here.
        max_concurrent_trials=int(limits.get("max_concurrent_trials") or 1),
        timeout_s=_seconds(limits.get("timeout")),
        trial_timeout_s=_seconds(limits.get("trial_timeout")),
        early_termination=_early_termination(spec),
        tags=_tags(spec),
        places=_places(spec),
    )


def dimension(spec: Spec, *keys: Key) -> Dimension:
    """The distribution written at `keys`; a `choice` may hold nested spaces."""
    written = spec.get(*keys)
    kind, name = str(written["type"]).lower(), str(keys[-1])
    if kind == "choice":
        values = [
            _nested(spec, *keys, "values", index) if isinstance(value, dict) else value
            for index, value in enumerate(written.get("values") or [])
        ]
        return Dimension(name, kind, tuple(values), spec.place(*keys))
    order = ("min_value", "max_value", "mu", "sigma", "upper", "q")
    numbers = tuple(written[key] for key in order if key in written)
    return Dimension(name, kind, numbers, spec.place(*keys))


def _nested(spec: Spec, *keys: Key) -> Mapping[str, object]:
    return Frozen(
        (str(key), dimension(spec, *keys, key) if isinstance(value, dict) else value)
        for key, value in spec.get(*keys).items()
    )


def _distribution(spec: Spec, *keys: Key) -> Distribution | None:
    written = spec.get(*keys)
    if not isinstance(written, dict):
        return None
    count = int(written.get("process_count_per_instance") or 1)
    return Distribution(str(written.get("type", "")).lower(), count, spec.place(*keys))


def _early_termination(spec: Spec) -> EarlyTermination | None:
    written = spec.get("early_termination")
    if not isinstance(written, dict):
        return None
    factor, amount = written.get("slack_factor"), written.get("slack_amount")
    return EarlyTermination(
        type=str(written["type"]).lower(),
        place=spec.place("early_termination"),
        evaluation_interval=int(written.get("evaluation_interval") or 1),
        delay_evaluation=int(written.get("delay_evaluation") or 0),
        slack_factor=float(factor) if factor else None,
        slack_amount=float(amount) if amount else None,
        truncation_percentage=written.get("truncation_percentage"),
    )


def _places(spec: Spec, *at: Key) -> Mapping[str, Place]:
    """The line of every field of a job, a trial's own before the sweep's; two levels deep."""
    places: dict[str, Place] = {}
    for owner in ((), at) if at else ((),):
        for field, value in (spec.get(*owner) or {}).items():
            places[str(field)] = spec.place(*owner, field)
            for key in (
                value if isinstance(value, dict) and field in {"resources", "limits"} else ()
            ):
                places[f"{field}.{key}"] = spec.place(*owner, field, key)
    return Frozen(places)


def _display_name(spec: Spec) -> str:
    return str(spec.get("display_name") or spec.get("name") or spec.file.stem)


def _experiment(spec: Spec) -> str:
    """Azure ML's default is the name of the working directory (reference-yaml-job-command)."""
    return str(spec.get("experiment_name") or Path.cwd().name)


def _tags(spec: Spec) -> Mapping[str, str]:
    return Frozen((str(key), _text(value)) for key, value in (spec.get("tags") or {}).items())


def _seconds(value: Any) -> float | None:
    return float(value) if value else None


def _text(value: Any) -> str:
    return "" if value is None else str(value)
