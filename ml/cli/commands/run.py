"""`ml run`: check a job spec, plan it, run it, and say how it went."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ml.cli.options import On
from ml.core.errors import Exit, Problem, Refused

if TYPE_CHECKING:
    from ml.backends.base import Backend
    from ml.backends.runs import Event, Watch


def command(
    spec: Annotated[Path, typer.Argument(help="An Azure ML job spec (YAML).")],
    on: On = "local",
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
    from ml.backends.base import DATA_NOT_HERE, Options
    from ml.backends.choice import open_backend
    from ml.cli.render import units

    overrides = parse_changes(changes or [])
    echo = None if quiet or as_json else sys.stderr
    say = _say if not quiet else lambda line: None
    options = Options(
        *(echo, isolated, say),
        tuple(units.seconds("--evict-after", text) for text in evict_after or ()),
        units.seconds("--evict-notice", evict_notice),
    )
    backend = open_backend(on, options)
    if spec.is_file() and not dry_run:
        backend.prepare()
    from ml.cli import disk_limit
    from ml.cli.render import costs, live, plan_text
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
    refusals = backend.refusals(plan)
    lacking = [problem for problem in refusals if problem.code == DATA_NOT_HERE]
    if refusals and not (dry_run and len(lacking) == len(refusals)):
        raise Refused(*refusals, exit_code=Exit.CANNOT_HONOUR)
    if dry_run:
        # What it would do can be shown all the same; to run it, the data has to be here.
        _say(*(replace(problem, severity="warning") for problem in lacking))
        compared = backend.environments(plan)
        priced = costs.of(plan)
        azure = [costs.as_json(cost) for cost in priced]
        document = {
            **plan_text.as_json(plan),
            "environments": [difference.data for difference in compared],
            "azure_costs": azure,
        }
        text = json.dumps(document, indent=1) if as_json else plan_text.as_text(plan)
        sys.stdout.write(f"{text}\n")
        lines = (
            ()
            if isolated
            else (f"  {line}" for difference in compared for line in difference.lines)
        )
        _say(*backend.differences(plan), *lines)
        _say(*priced)
        return
    _say(*backend.differences(plan))
    disk_limit.enforce(
        backend, say, [data.path for _, data in given(plan) if data.path is not None]
    )
    keep = keep or str(plan.tags.get("keep", "")).lower() in {"true", "yes", "1"}
    with live.watching(plan, show) as watch:
        run = backend.run(plan, protecting(backend, watch) if keep else watch)
    if as_json:
        compared = backend.environments(plan)
        document = {
            **live.as_json(backend, run),
            "environments": [difference.data for difference in compared],
        }
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        _say(live.summary(backend, plan, run, echoed))
    raise typer.Exit(Exit.DONE if run.status == "Completed" else Exit.RUN_FAILED)


def protecting(backend: Backend, watch: Watch) -> Watch:
    """A watcher that protects the run as soon as it has a folder, besides what `watch` does."""

    def see(event: Event) -> None:
        if event.kind == "started":
            backend.storage.keep(event.run, True)
        watch(event)

    return see


def parse_changes(changes: list[str]) -> dict[str, str]:
    """`["a.b=c"]` → `{"a.b": "c"}`; Refused for a change that is not FIELD=VALUE."""
    fields: dict[str, str] = {}
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
        fields[field.strip()] = value
    return fields


def _say(*lines: object) -> None:
    for line in lines:
        sys.stderr.write(f"{line}\n")
