"""The command line `infra`. A UserError ends with its exit code, without a traceback."""

from __future__ import annotations

import atexit
import gc
import io
import json
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from infra.settings import loader
from infra.settings import stacks as order
from ml.core.errors import Exit, Problem, UserError

if TYPE_CHECKING:
    from infra.live.arm import Arm
    from infra.preview.capture import Resource
    from infra.settings.model import Settings

T = TypeVar("T")
Format = Literal["text", "md", "json"]
Stacks = Annotated[list[str] | None, typer.Argument(help="Environments; all if none is named.")]
Stack = Annotated[str, typer.Argument(help="The environment.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
app = typer.Typer(
    name="infra",
    help="The Azure ML environment: its settings, and what they would provision, offline.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help, as in `ml`: the same in a terminal, a log and a narrow window.
    rich_markup_mode=None,
)


@app.command()
def settings(
    stacks: Stacks = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of a stack file.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the stack files; exit 2 with every problem, each with its line."""
    if schema:
        _write_json(loader.schema())
        return
    problems: list[Problem] = []
    loaded: dict[str, object] = {}
    for stack in loader.select(stacks):
        try:
            loaded[stack] = asdict(loader.load(stack))
        except UserError as refused:
            problems.extend(refused.problems)
    if problems:
        raise UserError(*problems)
    if as_json:
        _write_json(loaded)
        return
    for stack in loaded:
        typer.echo(f"{stack}: valid")


@app.command()
def cost(
    stacks: Stacks = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Fetch Azure's public price list first; no sign-in.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Estimate the monthly cost: idle, typical and worst, each line with the date of its price."""
    from infra.cost import estimate, prices

    price_list = prices.read()
    environments = [loader.load(stack) for stack in loader.select(stacks)]
    if refresh:
        for region in sorted({environment.location for environment in environments}):
            in_region = [
                environment for environment in environments if environment.location == region
            ]
            sizes = sorted({size for environment in in_region for size in environment.sizes})
            fresh, missing = prices.refreshed(sizes, region)
            price_list = price_list.updated(fresh)
            for size in missing:
                typer.echo(f"{region} lists no {size}", err=True)
        price_list.write()
    estimates = [estimate.estimate(environment, price_list) for environment in environments]
    if as_json:
        _write_json([estimate.as_json(result) for result in estimates])
        return
    typer.echo("\n\n".join(estimate.as_text(result) for result in estimates))


@app.command()
def preview(
    stacks: Stacks = None,
    form: Annotated[Format, typer.Option("--format", help="text, md or json.")] = "text",
    against: Annotated[
        str, typer.Option(help="Show the changes since this git revision, such as main.")
    ] = "",
    save: Annotated[Path | None, typer.Option(help="Also write the JSON into this file.")] = None,
) -> None:
    """Show what each environment would contain, from the real program, without Azure.

    Exit 2 if the program could not be deployed as it is, 3 if it violates a policy.
    """
    try:
        from infra.preview.report import rendered, reports
    except ModuleNotFoundError as error:
        missing = f"`{error.name}` is not installed"
        raise UserError(
            Problem("not-installed", missing, "Pulumi's packages", "make infra")
        ) from None

    previews = reports(stacks or (), against=against)
    sys.stdout.write(rendered(previews, form))
    if save:
        try:
            save.write_text(rendered(previews, "json"))
        except OSError as error:
            problem, expected = f"--save {save}: {error.strerror}", "a file that can be written"
            raise UserError(
                Problem("cannot-write", problem, expected, "choose another path")
            ) from None
    if any(report.problems for report in previews):
        raise typer.Exit(int(Exit.WRONG_CALL))
    if any(report.refused for report in previews):
        raise typer.Exit(int(Exit.GATE_SAID_NO))


@app.command()
def doctor(stack: Stack, as_json: AsJson = False) -> None:
    """Check whether Azure would reject a deployment: providers, names, quota, permissions.

    Exit 3 if it certainly would.
    """
    from infra.live.doctor import examine

    environment = loader.load(stack)
    arm = _arm(environment)
    checks = _printed(examine(environment, _declared(stack, arm), arm), as_json)
    if any(check.verdict == "error" for check in checks):
        raise typer.Exit(Exit.GATE_SAID_NO)


@app.command()
def drift(stack: Stack, as_json: AsJson = False) -> None:
    """Compare what is declared with what exists; exit 3 on a difference that matters."""
    from infra.live import drift as drifts

    arm = _arm(loader.load(stack))
    declared = _declared(stack, arm)
    differences = _printed(drifts.drift(declared, arm, drifts.read_ignored()), as_json)
    if differences:
        raise typer.Exit(Exit.GATE_SAID_NO)
    if not as_json:
        typer.echo(
            f"{stack}: {sum(resource.custom for resource in declared)} resources are as declared"
        )


@app.command()
def sas(
    stack: Stack,
    path: Annotated[str, typer.Argument(help="CONTAINER/FILE, or CONTAINER/FOLDER/.")],
    to_write: Annotated[
        bool, typer.Option("--write", help="Grant write access; the default is read.")
    ] = False,
    hours: Annotated[float, typer.Option(help="Hours for which it is valid.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Print a user-delegation SAS of the data lake for one path; the output is a secret."""
    from infra.live import sas as tokens

    environment = loader.environment(stack)
    scope = tokens.scope(path)
    limit = timedelta(hours=environment.storage.sas_hours)
    life = tokens.lifetime(hours, limit)
    service = tokens.service(environment.names.worldwide("stlk"))
    token = tokens.issue(service, scope, "write" if to_write else "read", life, limit)
    if as_json:
        _write_json(
            {"url": token.url, "expires": token.expires.isoformat(), "access": token.access}
        )
        return
    typer.echo(token.url)
    typer.echo(f"{token.access} {scope} until {token.expires:%Y-%m-%d %H:%M} UTC", err=True)


@app.command()
def access(stacks: Stacks = None, as_json: AsJson = False) -> None:
    """Print what each workflow may do: GitHub environment, roles and reviewers; offline."""
    from infra.live import workflow_access

    rows = [
        row
        for stack in loader.select(stacks)
        for row in workflow_access.table(loader.load(stack), _declared(stack), loader.FOLDER.parent)
    ]
    if as_json:
        _write_json([asdict(row) for row in rows])
        return
    for row in rows:
        approval = f", approved by {', '.join(row.reviewers)}" if row.reviewers else ""
        typer.echo(f"{row.environment}: {', '.join(row.jobs) or 'no workflow'}{approval}")
        for role, scope in row.grants:
            typer.echo(f"  {role} on {scope}")


@app.command()
def bootstrap(
    stacks: Stacks = None,
    run: Annotated[bool, typer.Option("--run", help="Run the missing steps.")] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Print every command without asking Azure or GitHub.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Set up a new fork before its first update: state, stacks, identities, GitHub's variables.

    Shows the missing steps; --run runs them. Running it again changes nothing.
    """
    from infra.live import bootstrap as plans
    from infra.live import steps

    selected = loader.select(stacks)
    ordered = [name for name in order.ordered(loader.FOLDER.parent) if name in selected]
    environments = [loader.load(stack) for stack in [*ordered, *({*selected} - {*ordered})]]
    placeholders = [problem for stack in selected for problem in loader.placeholders(stack)]
    if placeholders and not offline:
        raise UserError(*placeholders)
    plan = plans.plan(environments)
    for sentence in plans.shared_subscriptions(environments):
        typer.echo(sentence, err=True)
    if offline:
        if as_json:
            _write_json([{"step": step.name, "command": steps.shown(step.make)} for step in plan])
        else:
            typer.echo("\n".join(steps.shell(step.make) for step in plan))
        return
    results = []
    for result in steps.carry_out(plan, steps.run_command, make=run):
        results.append(result)
        if not as_json:
            typer.echo(f"{result.outcome:<8} {result.step.name}")
            for difference in result.differences:
                typer.echo(f"         {difference}")
            for command in result.commands if result.outcome != "created" else ():
                typer.echo(f"         {steps.shell(command)}")
    if as_json:
        _write_json([steps.as_json(result) for result in results])
    missing = sum(result.outcome in ("missing", "differs") for result in results)
    if missing:
        next_step = (
            "push the stack files, run infra.yml, rerun this command (also after setting APP_ID)"
            if run
            else "add --run to create them"
        )
        typer.echo(f"{missing} of {len(results)} are missing or differ; {next_step}", err=True)


def _printed(items: Iterable[T], as_json: bool) -> list[T]:
    """Print each item as it arrives, or all as one JSON list at the end; return the items."""
    printed = []
    for item in items:
        printed.append(item)
        if not as_json:
            typer.echo(str(item))
    if as_json:
        _write_json([asdict(item) for item in printed])  # type: ignore[call-overload]
    return printed


def _write_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def _declared(stack: str, arm: Arm | None = None) -> Sequence[Resource]:
    """Return the resources that the program declares.

    With `arm`, the accounts of the shared registry are read from Azure.
    """
    from infra.preview.engine import registry
    from infra.preview.runner import runner

    def lookup_registry(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        from infra.live.arm import asset_registry

        return (asset_registry(arm, arguments) if arm else {}) or registry(arguments)

    with runner() as programs:
        return programs.capture(stack, lookup_registry=lookup_registry).resources


def _arm(environment: Settings) -> Arm:
    from infra.live import arm

    return arm.Arm(arm.credential(arm.PUBLIC), environment.subscription, arm.PUBLIC)


for command in app.registered_commands:
    # Use the whole first paragraph: typer's own summary ends at the first full stop or line.
    doc = (command.callback and command.callback.__doc__) or ""
    command.short_help = " ".join(doc.split("\n\n")[0].split())


def main(argv: list[str] | None = None) -> None:
    """Run the command line; SIGTERM raises SystemExit, so that child processes are stopped too."""
    if argv is None:
        gc.set_threshold(50_000, 20, 100)  # both as in ml.cli.app
        atexit.register(gc.freeze)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal without `→` shows `?`
    try:
        app(argv)
    except UserError as refused:
        sys.stderr.write(f"{refused}\n")
        raise SystemExit(int(refused.exit_code)) from None
