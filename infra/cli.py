"""`infra`: parse, call, print; a mistake of the caller ends with its exit code and no traceback."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from infra import schema as schemas
from infra import settings as environments
from infra.live import cli as live
from ml.core.errors import Exit, Problem, Refused

Format = Literal["text", "md", "json"]
app = typer.Typer(
    name="infra",
    help="The Azure ML environment: its settings, and what they would provision, offline.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # As `ml` writes its help: the same in a terminal, a log and a narrow window.
    rich_markup_mode=None,
)
Stacks = live.Stacks


@app.command()
def settings(
    stacks: Stacks = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="The JSON Schema of a stack file, for editors.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Check the stack files; exit 2 with every problem, each with its line."""
    if schema:
        live.write(schemas.schema())
        return
    problems: list[Problem] = []
    found: dict[str, object] = {}
    for stack in environments.chosen(stacks):
        try:
            found[stack] = asdict(environments.load(stack))
        except Refused as refused:
            problems.extend(refused.problems)
    if problems:
        raise Refused(*problems)
    if as_json:
        live.write(found)
        return
    for stack in found:
        typer.echo(f"{stack}: sound")


@app.command()
def cost(
    stacks: Stacks = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Ask Azure's public price list first; no sign-in.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """What a month costs: idle, typical and worst, each line with its price's date."""
    from infra import costing
    from infra.estimate import estimate
    from infra.pricing import prices, retail

    try:
        listed = prices.read()
        known = [environments.load(stack) for stack in environments.chosen(stacks)]
        if refresh:
            sizes = {(size, one.location) for one in known for size in one.sizes}
            for region in sorted({region for _, region in sizes}):
                here = sorted(size for size, where in sizes if where == region)
                fresh, missing = retail.refreshed(here, region)
                listed = listed.updated(fresh)
                for size in missing:
                    typer.echo(f"{region} lists no {size}", err=True)
            listed.write()
    except prices.WrongPrices as error:
        hint = f"mend {prices.FILE.name} by hand or from git"
        raise Refused(Problem("wrong-prices", str(error), "a price list", hint)) from None
    except retail.NoPrices as error:
        hint = "the list in the repository stays as it was; leave out --refresh to use it"
        raise Refused(
            Problem("no-prices", str(error), "an answer of the price list", hint),
            exit_code=Exit.RUN_FAILED,
        ) from None
    made = [estimate(one, listed) for one in known]
    if as_json:
        live.write([costing.as_json(one) for one in made])
        return
    typer.echo("\n\n".join(costing.as_text(one) for one in made))


@app.command()
def preview(
    stacks: Stacks = None,
    form: Annotated[Format, typer.Option("--format", help="text, md or json.")] = "text",
    against: Annotated[
        str, typer.Option(help="A git revision, such as main, to show the changes from.")
    ] = "",
    svg: Annotated[
        Path | None, typer.Option(help="A folder for STACK.svg, a picture of each.")
    ] = None,
) -> None:
    """Show what each environment would have, from the real program, with no cloud.

    Exit 2 when the program could not be deployed as it is, 3 when a policy refuses it.
    """
    try:
        from infra.preview.rendered import rendered
        from infra.preview.reports import reports
        from infra.preview.topology import svg as drawn
    except ModuleNotFoundError as error:
        found_ = f"`{error.name}` is not installed"
        raise Refused(Problem("not-installed", found_, "Pulumi's packages", "make infra")) from None

    if svg:
        with _writing(svg):
            svg.mkdir(parents=True, exist_ok=True)
    found = reports(stacks or (), against=against)
    sys.stdout.write(rendered(found, form))
    for one in found if svg else ():
        assert svg
        with _writing(svg):
            (svg / f"{one.capture.stack}.svg").write_text(drawn(one.capture))
    if any(one.problems for one in found):
        raise typer.Exit(int(Exit.WRONG_CALL))
    if any(one.refused for one in found):
        raise typer.Exit(int(Exit.GATE_SAID_NO))


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        found = f"--svg {folder}: {error.strerror}"
        expected = "a folder, or a place where one can be made"
        raise Refused(Problem("cannot-write", found, expected, "name another folder")) from None


for command in (live.doctor, live.drift, live.sas, live.bootstrap):
    app.command()(command)
for one in app.registered_commands:
    # Whole: what typer would make of the docstring itself ends in the middle.
    one.short_help = " ".join(
        ((one.callback and one.callback.__doc__) or "").split("\n\n")[0].split()
    )


def main(argv: list[str] | None = None) -> None:
    """Run the command line; as a program of its own it ends what it started when it is ended."""
    if argv is None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal without `→` has a `?`
    try:
        app(argv)
    except Refused as refused:
        sys.stderr.write(f"{refused}\n")
        raise SystemExit(int(refused.exit_code)) from None
