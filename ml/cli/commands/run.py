"""`ml run`: check a job spec, plan it, run it, and print its summary."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ml.cli.options import AsJson, On, seconds
from ml.cli.render.output import write_json
from ml.core.errors import Exit, Problem, UserError, errors

if TYPE_CHECKING:
    from ml.backends.base import Backend
    from ml.specs.plan.plans import Plan
    from ml.specs.sdk.load import Spec


def run(
    spec: Annotated[Path, typer.Argument(help="An Azure ML spec: job, schedule, batch endpoint.")],
    on: On = "local",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a field, e.g. inputs.lr=0.1."),
    ] = None,
    evict_after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="20s", help="Evict it, like a spot node, this long after its start; repeatable."
        ),
    ] = None,
    evict_notice: Annotated[
        str, typer.Option(metavar="30s", help="Send SIGTERM this long before the eviction.")
    ] = "0s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; run nothing.")] = False,
    as_json: AsJson = False,
    isolated: Annotated[
        bool, typer.Option("--isolated", help="Build the environment from its conda file with uv.")
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="On Azure: submit this commit and spec again.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, only the summary.")] = False,
) -> None:
    """Run a job spec: exit 0 completed, 1 failed, 2 the spec is wrong, 33 not possible here."""
    from ml.backends.base import FAMILIES, Options
    from ml.cli.app import open_backend

    overrides = parse_changes(changes or [])
    show = not quiet and not as_json
    say = _say if not quiet else lambda line: None
    options = Options(
        echo=sys.stderr if show else None,
        isolated=isolated,
        say=say,
        evict_after=tuple(seconds("--evict-after", text) for text in evict_after or ()),
        evict_notice=seconds("--evict-notice", evict_notice),
        again=again,
    )
    if options.evict_notice and not options.evict_after:
        actual, hint = "--evict-notice without --evict-after", "--evict-after 20s"
        raise UserError(Problem("option-conflict", actual, "the time of an eviction", hint))
    backend = open_backend(on, options)
    if spec.is_file() and not dry_run and backend.prepare:
        backend.prepare()
    loaded, problems = _checked(backend, spec, overrides)
    if loaded.kind.family in FAMILIES:
        if wrong := errors(problems):
            raise UserError(*wrong)
        _apply(backend, loaded, dry_run, as_json)
        return
    if dry_run and loaded.kind.family == "online_deployment":
        if wrong := errors(problems):
            raise UserError(*wrong)
        from ml.cli.render import costs

        cost = costs.of_deployment(loaded)
        write_json({"azure_costs": [cost]}) if as_json else _say(cost)
        return
    plan = _planned(backend, loaded, problems, dry_run)
    if dry_run:
        _show_plan(backend, plan, isolated, as_json)
        return
    _carry_out(backend, plan, show=show, as_json=as_json)


def _checked(
    backend: Backend, file: Path, overrides: dict[str, str]
) -> tuple[Spec, Sequence[Problem]]:
    """Load and check a spec; return it with its problems, and print the warnings."""
    from ml.cli import clusters
    from ml.specs.check import check
    from ml.specs.sdk import load

    spec = load.load(file, overrides)
    # Local runs use no cluster, so do not check its size.
    problems = check.check(spec, clusters=() if backend.simulated else clusters.declared())
    _say(*(problem for problem in problems if problem.severity == "warning"))
    return spec, problems


def _planned(backend: Backend, spec: Spec, problems: Sequence[Problem], dry_run: bool) -> Plan:
    """Return the plan; raise UserError for errors and for parts that the backend cannot run.

    In a dry run, missing input data is only a warning.
    """
    from ml.backends.base import DATA_NOT_HERE
    from ml.core import home
    from ml.specs.plan import planning

    if (wrong := errors(problems)) and not backend.simulated:
        raise UserError(*wrong)
    # Locally, planning reports these errors together with its own.
    plan = planning.plan(spec, registered=home.assets(), problems=problems)
    refusals = backend.refusals(plan)
    missing_data = [problem for problem in refusals if problem.code == DATA_NOT_HERE]
    if refusals and not (dry_run and len(missing_data) == len(refusals)):
        raise UserError(*refusals, exit_code=Exit.CANNOT_HONOUR)
    _say(*(replace(problem, severity="warning") for problem in missing_data))
    return plan


def _carry_out(
    backend: Backend,
    plan: Plan,
    *,
    show: bool,
    as_json: bool,
) -> NoReturn:
    """Run the plan, print its summary, and end with the run's exit code."""
    from ml.cli.render import progress
    from ml.cli.render.runs_text import run_json
    from ml.specs.plan.plans import CommandPlan

    _say(*backend.differences(plan))
    with progress.watching(plan, show) as watch:
        ended = backend.run(plan, watch)
    if as_json:
        compared = backend.environments(plan) if backend.environments else ()
        environments = [comparison.data for comparison in compared]
        write_json({**run_json(backend, ended), "environments": environments})
    else:
        echoed = show and isinstance(plan, CommandPlan)
        _say(progress.summary(backend, plan, ended, echoed))
    raise typer.Exit(ended.exit_code)


def _apply(backend: Backend, spec: Spec, dry_run: bool, as_json: bool) -> None:
    """Create the schedule, batch endpoint or deployment that a spec declares."""
    from dataclasses import asdict

    if backend.resources is None:
        actual = f"this machine cannot create {spec.kind.with_article}"
        hint = f"ml run {spec.document.shown} --on azure"
        problem = Problem("unsupported-kind", actual, "a job", hint, spec.place())
        raise UserError(problem, exit_code=Exit.CANNOT_HONOUR)
    if dry_run:
        requests = backend.resources.requests(spec)
        if as_json:
            write_json({"requests": requests})
        sys.stdout.writelines(f"{line}\n" for line in ([] if as_json else requests))
        return
    applied = backend.resources.apply(spec)
    if as_json:
        write_json(asdict(applied))
        return
    _say(f"{applied.kind} {applied.name}: {applied.change}")
    _say(*(f"next: {command}" for command in applied.commands))


def _show_plan(backend: Backend, plan: Plan, isolated: bool, as_json: bool) -> None:
    """Print the plan on stdout; differences from Azure ML and costs on stderr."""
    from ml.cli.render import costs, plan_text

    environments = backend.environments(plan) if backend.environments else ()
    priced = costs.estimate(plan)
    requests = backend.requests(plan) if backend.requests else ()
    if as_json:
        write_json(
            {
                **plan_text.as_json(plan),
                "environments": [compared.data for compared in environments],
                "azure_costs": [costs.as_json(cost) for cost in priced],
                "requests": requests,
            }
        )
    else:
        # Not typer.echo, which would write UTF-8 to an ASCII terminal.
        sys.stdout.write(f"{plan_text.as_text(plan)}\n")
        sys.stdout.writelines(f"{line}\n" for line in requests)
    _say(*backend.differences(plan))
    if not isolated:
        _say(*(f"  {line}" for compared in environments for line in compared.lines))
    _say(*priced)


def parse_changes(changes: list[str]) -> dict[str, str]:
    """Parse `["a.b=c"]` into `{"a.b": "c"}`; raise UserError for any other format."""
    fields: dict[str, str] = {}
    for change in changes:
        field, equals, value = change.partition("=")
        if not equals or not field.strip():
            hint = "for example: --set inputs.learning_rate=0.1"
            raise UserError(Problem("bad-override", f"--set {change}", "FIELD=VALUE", hint))
        fields[field.strip()] = value
    return fields


def _say(*lines: object) -> None:
    for line in lines:
        sys.stderr.write(f"{line}\n")
