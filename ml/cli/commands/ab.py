"""`ml ab`: an experiment between two versions of an endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ml.backends.choice import open_backend
from ml.cli.options import Environment
from ml.cli.render import json_out
from ml.core.errors import Exit, Problem, Refused

app = typer.Typer(help="An experiment between two versions of an endpoint.")

Name = Annotated[str, typer.Argument(help="The experiment.")]
AsJson = Annotated[bool, typer.Option("--json", help="The result as JSON.")]


@app.command()
def start(
    name: Annotated[str, typer.Argument(help="A name for the experiment.")],
    project: Annotated[str, typer.Argument(help="A folder under ml/projects.")],
    b: Annotated[str, typer.Option(help="The version that is tried.")],
    effect: Annotated[float, typer.Option(help="The smallest difference that would matter.")],
    a: Annotated[str, typer.Option(help="Against this version; else the champion.")] = "",
    outcome: Annotated[
        Literal["binary", "continuous"], typer.Option(help="What is recorded: 0 or 1, a number.")
    ] = "binary",
    baseline: Annotated[float | None, typer.Option(help="A's rate as expected (binary).")] = None,
    deviation: Annotated[
        float | None, typer.Option(help="An outcome's standard deviation (continuous).")
    ] = None,
    share: Annotated[int, typer.Option(help="B's percentage of the keys.")] = 50,
    goal: Annotated[Literal["maximize", "minimize"], typer.Option()] = "maximize",
    alpha: Annotated[float, typer.Option(help="The chance of a wrong verdict, ever.")] = 0.05,
    power: Annotated[float, typer.Option(help="The chance to see the effect.")] = 0.8,
    env: Environment = "local",
    as_json: AsJson = False,
) -> None:
    """Declare the experiment and say how many outcomes it will take; no request goes to B yet.

    `ml ab serve` sends B its keys, with the gates asked and without a canary.
    """
    from ml.release.ab import experiment
    from ml.release.declaration import projects
    from ml.release.declaration.desired_state import check_environment

    environment = check_environment(env)
    model = projects.find(project).deployment().endpoint
    registry = open_backend().registry
    champion = registry.champion(model, environment)
    if not a and champion is None:
        raise Refused(Problem("no-champion", f"`{model}` has none in {environment}", "--a VERSION"))
    first = registry.find(model, a) if a else champion
    assert first is not None
    ab_test = experiment.declare(
        *(name, first, registry.find(model, b)),
        environment=environment,
        outcome=outcome,
        effect=effect,
        baseline=baseline,
        deviation=deviation,
        share=share,
        goal=goal,
        alpha=alpha,
        power=power,
    )
    if as_json:
        json_out.write(_as_json(ab_test))
        return
    typer.echo(
        f"{name}: {model} {ab_test.a.version} (A) against {ab_test.b.version} (B, "
        f"{share} % of the keys)",
        err=True,
    )
    typer.echo(
        f"about {ab_test.planned:,} outcomes show a difference of {effect:g} with a power of "
        f"{power:.0%}, looked at any time ({ab_test.fixed:,} if looked at once)",
        err=True,
    )
    typer.echo(
        f"no key is sent to B yet; next: ml ab serve {name} --approved-by NAME (the gates are "
        "asked; no canary leads B, so its keys are all its own at once)",
        err=True,
    )


@app.command()
def serve(
    name: Name,
    approved_by: Annotated[str, typer.Option(help="Who stands for it.")] = "",
) -> None:
    """Start B beside A and send its keys there, once the gates allow it; exit 3 when not.

    No canary leads B: the keys are its own from the start, and `ml ab stop` sends them back.
    """
    from ml.cli.render import verdicts
    from ml.release.ab import experiment, routing

    ab_test = experiment.find(name)
    decision, router = routing.serve(open_backend(), ab_test, approved_by)
    if router is None:
        verdicts.show(decision)
        if [result.gate for result in decision.blocking] == ["sign-off"]:
            typer.echo(f"next: ml ab serve {name} --approved-by NAME", err=True)
        raise typer.Exit(Exit.GATE_SAID_NO)
    typer.echo(f"{name}: {ab_test.share} % of the keys are answered by B: {router.url}", err=True)
    typer.echo("callers send theirs in the header x-routing-key", err=True)
    typer.echo(f"no canary takes B back: ml ab stop {name} sends every key to A", err=True)


@app.command()
def stop(name: Name) -> None:
    """Send every key to A again; outcomes that come late may still be recorded."""
    from ml.release.ab import experiment, routing

    was = "stopped" if routing.stop(experiment.find(name)) else "was not served"
    typer.echo(f"{name}: {was}", err=True)


@app.command()
def assign(
    name: Name,
    keys: Annotated[list[str], typer.Argument(help="Keys, such as customers' numbers.")],
    as_json: AsJson = False,
) -> None:
    """Say which version answers a key, and remember that it was asked for."""
    from ml.release.ab import experiment, records

    arms = records.assign(experiment.find(name), keys)
    if as_json:
        json_out.write(dict(arms))
        return
    for key, arm in arms.items():
        typer.echo(f"{key}\t{arm}")


@app.command()
def record(
    name: Name,
    key: Annotated[str, typer.Argument(help="The key that the outcome is of.")] = "",
    value: Annotated[float | None, typer.Argument(help="0 or 1, or a number.")] = None,
    file: Annotated[
        Path | None, typer.Option("--from", help="Many: lines of KEY,VALUE without a header.")
    ] = None,
) -> None:
    """Record what came of a key; the first outcome of a key counts."""
    from ml.release.ab import experiment, records

    ab_test = experiment.find(name)
    if file is not None:
        outcomes = _read_outcomes(file)
    elif key and value is not None:
        outcomes = [(key, value)]
    else:
        raise Refused(Problem("no-outcome", "nothing to record", "KEY VALUE, or --from FILE"))
    counted = records.record(ab_test, outcomes)
    repeated = len(outcomes) - counted
    also = f"; {repeated} of keys that had one before, which stands" if repeated else ""
    typer.echo(f"{name}: {counted} recorded{also}", err=True)


@app.command()
def report(
    name: Name,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="A page with the picture, here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what the experiment says so far; look as often as you like."""
    from ml.release.ab import experiment, records, routing
    from ml.release.ab.verdict import verdict

    ab_test = experiment.find(name)
    outcomes, is_served = records.read(ab_test), routing.served(ab_test)
    result = verdict(ab_test, outcomes)
    if out is not None:
        from ml.core import files
        from ml.reports.pages import experiment_page

        files.replace(out, experiment_page(ab_test, outcomes, result))
    if as_json:
        json_out.write(
            {
                **_as_json(ab_test),
                **result.to_json(),
                "served": is_served,
                "records": _lines(outcomes),
            }
        )
        return
    for arm, side, count in (("A", ab_test.a, result.a), ("B", ab_test.b, result.b)):
        mean = "" if count.mean is None else f", mean {count.mean:.4g}"
        typer.echo(
            f"{arm}, version {side.version}: {count.assigned:,} keys, "
            f"{count.outcomes:,} outcomes{mean}"
        )
    for what, lines in _lines(outcomes).items():
        if lines:
            typer.echo(f"left out: {lines} {what}", err=True)
    typer.echo(result.said)
    if not is_served and not result.stop:
        typer.echo(f"no key is sent to B now: ml ab serve {name} --approved-by NAME", err=True)
    if out is not None:
        typer.echo(f"written to {out}", err=True)


@app.command("list")
def list_() -> None:
    """The experiments of this machine, each with its verdict."""
    from ml.release.ab import experiment, records
    from ml.release.ab.verdict import verdict

    if not experiment.every():
        typer.echo("none was started yet; ml ab start --help", err=True)
    for name in experiment.every():
        ab_test = experiment.find(name)
        sentence = verdict(ab_test, records.read(ab_test)).said
        typer.echo(
            f"{name}: {ab_test.model} {ab_test.a.version} against {ab_test.b.version}: {sentence}"
        )


def _read_outcomes(path: Path) -> list[tuple[str, float]]:
    import csv

    from ml.core.errors import Place

    outcomes = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            for number, row in enumerate(csv.reader(stream), 1):
                if not row:
                    continue
                try:
                    key, value = row
                    outcomes.append((key, float(value)))
                except ValueError:
                    raise Refused(
                        Problem(
                            *("bad-outcome", ",".join(row)[:80], "KEY,VALUE"),
                            place=Place(str(path), number),
                        )
                    ) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Refused(Problem("unreadable", f"{path}: {error}", "lines of KEY,VALUE")) from None
    return outcomes


def _as_json(ab_test: object) -> dict[str, object]:
    from dataclasses import asdict

    from ml.release.ab.experiment import Experiment

    assert isinstance(ab_test, Experiment)
    fields = {name: value for name, value in asdict(ab_test).items() if name != "salt"}
    return {**fields, "planned": ab_test.planned, "fixed": ab_test.fixed}


def _lines(outcomes: object) -> dict[str, int]:
    from ml.release.ab.records import Records

    assert isinstance(outcomes, Records)
    return {
        "repeated": outcomes.repeated,
        "contradicting": outcomes.contradicting,
        "unreadable": outcomes.unreadable,
    }
