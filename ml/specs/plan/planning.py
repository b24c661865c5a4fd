"""A checked spec → a frozen plan, every reference in it resolved. Pure: nothing is created."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ml.core import repository
from ml.core.documents import Key
from ml.core.errors import Exit, Problem, Refused, errors
from ml.specs.check import check
from ml.specs.plan import fields
from ml.specs.plan.bindings import Bindings
from ml.specs.plan.components import part_of
from ml.specs.plan.plan import Frozen
from ml.specs.plan.pipelines import RUNNABLE, Planner
from ml.specs.plan.plan import CommandPlan, Plan
from ml.specs.sdk.load import Spec
from ml.specs.search import hints

# Problems that no value in the spec fixes: the thing that it names is in another place.
ELSEWHERE = frozenset({"remote-code", "component-not-here", "unsupported-step"})


def plan(spec: Spec, root: Path | None = None, registered: Path | None = None) -> Plan:
    """The plan of a command, sweep or pipeline job; Refused with every error at once.

    `root` is the repository whose specs define `azureml:` assets, `registered` the folder of those
    that runs on this machine registered. Kinds of jobs and steps that cannot run here, and
    code and components in other places, are refused with exit code 33.
    """
    problems = errors(check.check(spec))
    if problems:
        raise Refused(*problems)
    if not spec.kind.is_job or spec.kind.type not in RUNNABLE:
        _refuse_kind(spec)
    root = root or repository.root(spec.file)
    if spec.kind.type == "pipeline":
        planner = Planner(root, _experiment(spec), registered)
        pipeline = planner.job(part_of(spec), _display_name(spec))
        _refuse(planner.problems)
        return pipeline
    bindings = Bindings(spec, root, registered=registered)
    if spec.kind.type != "sweep":
        command = _command(spec, bindings)
        _refuse(bindings.problems)
        return command
    sweep = fields.sweep(spec, _command(spec, bindings, "trial"))
    sweep, hint_problems = hints.attach(sweep, spec.file, ())
    _refuse([*bindings.problems, *errors(hint_problems)])
    return sweep


def _refuse(problems: Sequence[Problem]) -> None:
    """Raise Refused if there are problems; exit code 33 if one of them is in ELSEWHERE."""
    if problems:
        elsewhere = any(problem.code in ELSEWHERE for problem in problems)
        code = Exit.CANNOT_HONOUR if elsewhere else Exit.WRONG_CALL
        raise Refused(*dict.fromkeys(problems), exit_code=code)


def _refuse_kind(spec: Spec) -> NoReturn:
    if spec.kind.is_job:
        message, code = f"this backend does not run {spec.kind}s yet", Exit.CANNOT_HONOUR
    else:
        message, code = (
            f"this is the spec of {spec.kind.with_article}, not of a job",
            Exit.WRONG_CALL,
        )
    hint = f"`ml check {spec.document.shown}` checks it"
    problem = Problem(
        "unsupported-kind", message, "a command, sweep or pipeline job", hint, spec.place("type")
    )
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
        environment_variables=Frozen((str(k), fields.text(v)) for k, v in variables.items()),
        inputs=Frozen((str(name), bindings.input(name)) for name in spec.get("inputs") or {}),
        outputs=Frozen((str(name), bindings.output(name)) for name in spec.get("outputs") or {}),
        timeout_s=fields.seconds(spec.get("limits", "trial_timeout" if at else "timeout")),
        instance_count=int(resources.get("instance_count") or 1),
        distribution=fields.distribution(spec, *at, "distribution"),
        tags=fields.tags(spec),
        description=fields.text(spec.get("description")),
        places=fields.places(spec, *at),
    )


def _display_name(spec: Spec) -> str:
    return str(spec.get("display_name") or spec.get("name") or spec.file.stem)


def _experiment(spec: Spec) -> str:
    """Azure ML's default is the name of the working directory (reference-yaml-job-command)."""
    return str(spec.get("experiment_name") or Path.cwd().name)
