"""`ml run`: check a job spec, plan it, run it, and say how it went."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ml.core.errors import Exit, Problem, Refused

if TYPE_CHECKING:
    from ml.backends.base import Event, Watch


def command(
    spec: Annotated[Path, typer.Argument(help="An Azure ML job spec (YAML).")],
    on: Annotated[str, typer.Option(help="Where: local (this machine).")] = "local",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a field, e.g. inputs.lr=0.1."),
    ] = None,
    evict_after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="20s", help="Kill it so long after its start, as a spot node; repeatable."
        ),
    ] = None,
    evict_notice: Annotated[
        str, typer.Option(metavar="30s", help="SIGTERM so long before an eviction kills.")
    ] = "0s",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; run nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON on stdout.")] = False,
    isolated: Annotated[
        bool, typer.Option("--isolated", help="In an environment that uv builds from conda files.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="What it writes never makes room for other runs.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, only the summary.")] = False,
) -> None:
    """Run a job spec: exit 0 completed, 1 failed, 2 the spec is wrong, 33 not possible here."""
    _demand_local(on)
    overrides = parse_changes(changes or [])
    if spec.is_file() and not dry_run:
        from ml.backends.local.tracking.tracking import prepare

        prepare()
    from ml.backends.base import Options
    from ml.backends.choice import open_backend
    from ml.backends.local.backend import DATA_NOT_HERE
    from ml.cli import bound
    from ml.cli.render import costs, environments, live, planned, spans
    from ml.core import home
    from ml.specs.check import check
    from ml.specs.plan import planning
    from ml.specs.plan.plan import CommandPlan, given
    from ml.specs.sdk import load

    loaded = load.load(spec, overrides)
    _say(*(problem for problem in check.check(loaded) if problem.severity == "warning"))
    plan = planning.plan(loaded, registered=home.assets())
    show = not quiet and not as_json
    echoed = show and isinstance(plan, CommandPlan)
    echo = sys.stderr if echoed else None
    say = _say if not quiet else lambda line: None
    options = Options(
        *(echo, isolated, say),
        tuple(spans.seconds("--evict-after", text) for text in evict_after or ()),
        spans.seconds("--evict-notice", evict_notice),
    )
    backend = open_backend(on, options)
    refusals = backend.refusals(plan)
    lacking = [problem for problem in refusals if problem.code == DATA_NOT_HERE]
    if refusals and not (dry_run and len(lacking) == len(refusals)):
        raise Refused(*refusals, exit_code=Exit.CANNOT_HONOUR)
    if dry_run:
        # What it would do can be shown all the same; to run it, the data has to be here.
        _say(*(replace(problem, severity="warning") for problem in lacking))
        compared = environments.as_json(plan)
        priced = costs.of(plan)
        azure = [costs.as_json(cost) for cost in priced]
        said = {**planned.as_json(plan), "environments": compared, "azure_costs": azure}
        text = json.dumps(said, indent=1) if as_json else planned.as_text(plan)
        sys.stdout.write(f"{text}\n")
        _say(*backend.differences(plan), *(() if isolated else environments.as_lines(plan)))
        _say(*priced)
        return
    _say(*backend.differences(plan))
    bound.hold(
        _say if not quiet else lambda line: None,
        [data.path for _, data in given(plan) if data.path is not None],
    )
    keep = keep or str(plan.tags.get("keep", "")).lower() in {"true", "yes", "1"}
    with live.watching(plan, show) as watch:
        run = backend.run(plan, keeping(watch) if keep else watch)
    if as_json:
        said = {**live.as_json(run), "environments": environments.as_json(plan)}
        sys.stdout.write(json.dumps(said, indent=1) + "\n")
    else:
        _say(live.summary(plan, run, echoed))
    raise typer.Exit(Exit.DONE if run.status == "Completed" else Exit.RUN_FAILED)


def keeping(watch: Watch) -> Watch:
    """A watcher that protects the run as soon as it has a folder, besides what `watch` does."""
    from ml.backends.choice import open_backend

    storage = open_backend().storage

    def see(event: Event) -> None:
        if event.kind == "started":
            storage.keep(event.run, True)
        watch(event)

    return see


def parse_changes(changes: list[str]) -> dict[str, str]:
    """`["a.b=c"]` → `{"a.b": "c"}`; Refused for a change that is not FIELD=VALUE."""
    found: dict[str, str] = {}
    for change in changes:
        field, equals, value = change.partition("=")
        if not equals or not field.strip():
            raise Refused(
                Problem(
                    "not-a-change",
                    f"--set {change}",
                    "FIELD=VALUE",
                    "for example: --set inputs.learning_rate=0.1",
                )
            )
        found[field.strip()] = value
    return found


def _demand_local(on: str) -> None:
    if on == "azure":
        raise Refused(
            Problem(
                "not-built-yet",
                "--on azure: jobs cannot be sent to Azure ML from here yet",
                "--on local",
                "az ml job create -f takes the same file, as it is",
            ),
            exit_code=Exit.CANNOT_HONOUR,
        )
    if on != "local":
        raise Refused(Problem("unknown-place", f"--on {on}", "local", "leave it out"))


def _say(*lines: object) -> None:
    for line in lines:
        sys.stderr.write(f"{line}\n")
