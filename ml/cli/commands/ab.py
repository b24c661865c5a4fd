"""`ml ab`: an experiment between two versions of an endpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ml.cli.app import open_backend
from ml.cli.options import AsJson, Environment
from ml.cli.render.output import write_json
from ml.core.errors import Exit, Place, Problem, UserError

if TYPE_CHECKING:
    from ml.release.ab.experiment import Experiment
    from ml.release.ab.records import Records

app = typer.Typer()

Name = Annotated[str, typer.Argument(help="The experiment.")]


@app.command()
def start(
    name: Annotated[str, typer.Argument(help="A name for the experiment.")],
    project: Annotated[str, typer.Argument(help="A folder under ml/projects.")],
    b: Annotated[str, typer.Option(help="The version to test.")],
    effect: Annotated[float, typer.Option(help="The minimum detectable effect.")],
    a: Annotated[str, typer.Option(help="The baseline version; default: the champion.")] = "",
    outcome: Annotated[
        Literal["binary", "continuous"], typer.Option(help="0 or 1 (binary), or a number.")
    ] = "binary",
    baseline: Annotated[float | None, typer.Option(help="A's expected rate (binary).")] = None,
    deviation: Annotated[
        float | None, typer.Option(help="Standard deviation of the outcome (continuous).")
    ] = None,
    share: Annotated[int, typer.Option(help="B's percentage of the keys.")] = 50,
    goal: Annotated[Literal["maximize", "minimize"], typer.Option()] = "maximize",
    alpha: Annotated[
        float, typer.Option(help="The probability of a wrong verdict, all looks included.")
    ] = 0.05,
    power: Annotated[float, typer.Option(help="The probability of detecting the effect.")] = 0.8,
    env: Environment = "local",
    on: Annotated[
        str | None,
        typer.Option(
            "--on", help="azure, or `local`: simulate an environment of release.yml here."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Declare the experiment and print how many outcomes it needs; no request goes to B yet.

    `ml ab serve` evaluates the gates and sends B its keys, without a canary.
    """
    from ml.release.ab import experiment
    from ml.release.declaration import projects
    from ml.release.declaration.desired_state import place_of

    backend = open_backend(place_of(env, on))
    model = projects.find(backend.root, project).endpoint()
    registry = backend.registry
    first = registry.find(model, a) if a else registry.champion(model, env)
    if first is None:
        actual = f"`{model}` has no champion in {env}"
        raise UserError(Problem("no-champion", actual, "--a VERSION"))
    ab_test = experiment.declare(
        backend,
        name,
        first,
        registry.find(model, b),
        environment=env,
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
        write_json(_as_json(ab_test))
        return
    _say(
        f"{name}: {model} {ab_test.a.version} (A) against {ab_test.b.version} (B, "
        f"{share} % of the keys)"
    )
    _say(
        f"about {ab_test.planned:,} outcomes show a difference of {effect:g} with a power of "
        f"{power:.0%}, with repeated looks ({ab_test.fixed_sample_size:,} with a single look)"
    )
    _say(
        f"no key is sent to B yet; next: ml ab serve {name} --approved-by NAME (it evaluates the "
        "gates; B gets all of its keys at once, without a canary)"
    )


@app.command()
def serve(
    name: Name,
    approved_by: Annotated[str, typer.Option(help="The person who signs it off.")] = "",
) -> None:
    """Start B beside A and send its keys there if the gates allow it; exit 3 when not.

    B gets all of its keys at once, without a canary; `ml ab stop` sends them back to A.
    """
    from ml.cli.render import release_text
    from ml.release.ab import experiment, routing

    ab_test = experiment.find(name)
    backend = open_backend(ab_test.place)
    decision, router = routing.serve(backend, ab_test, approved_by, _say)
    if router is None:
        release_text.show_decision(decision)
        if [result.gate for result in decision.blocking] == ["sign-off"]:
            _say(f"next: ml ab serve {name} --approved-by NAME")
        raise typer.Exit(Exit.GATE_SAID_NO)
    _say(f"{name}: {ab_test.share} % of the keys are answered by B: {router.url}")
    if backend.endpoints.exposed is None:
        _say(f"callers send the headers that `ml ab assign {name} KEY` prints; others get A")
    else:
        _say("callers send their key in the header x-routing-key")
    _say(f"ml ab stop {name} sends every key to A again; B has no canary")


@app.command()
def stop(name: Name) -> None:
    """Send every key to A again; late outcomes may still be recorded."""
    from ml.release.ab import experiment, routing

    ab_test = experiment.find(name)
    served = routing.stop(open_backend(ab_test.place), ab_test, _say)
    _say(f"{name}: {'stopped' if served else 'was not served'}")


@app.command()
def assign(
    name: Name,
    keys: Annotated[list[str], typer.Argument(help="Keys, such as customers' numbers.")],
    as_json: AsJson = False,
) -> None:
    """Print which version answers a key, and record the assignment.

    On Azure, also prints the headers to send: the endpoint does not route by key.
    """
    from ml.release.ab import experiment, records, routing

    ab_test = experiment.find(name)
    backend = open_backend(ab_test.place)
    arms = {key: ab_test.arm(ab_test.ticket(key)) for key in keys}
    splits = backend.endpoints.exposed is not None
    headers = {} if splits else routing.headers(backend, ab_test, arms)
    records.assign(backend, ab_test, keys)
    if as_json:
        requests = {key: {"version": arms[key], "headers": pairs} for key, pairs in headers.items()}
        write_json(requests or arms)
        return
    for key, arm in arms.items():
        sent = (f"{header}: {value}" for header, value in headers.get(key, {}).items())
        typer.echo("\t".join((key, arm, *sent)))


@app.command()
def record(
    name: Name,
    key: Annotated[str, typer.Argument(help="The key of the outcome, or its request's id.")] = "",
    value: Annotated[float | None, typer.Argument(help="0 or 1, or a number.")] = None,
    file: Annotated[
        Path | None, typer.Option("--from", help="A CSV file of KEY,VALUE without a header.")
    ] = None,
) -> None:
    """Record the outcome of a key; the first outcome of a key counts."""
    from ml.release.ab import experiment, records

    ab_test = experiment.find(name)
    if file is not None:
        outcomes = _read_outcomes(file)
    elif key and value is not None:
        outcomes = [(key, value)]
    else:
        raise UserError(Problem("no-outcome", "no outcome is given", hint="add --from FILE"))
    counted = records.record(open_backend(ab_test.place), ab_test, outcomes)
    repeated = len(outcomes) - counted
    also = f"; {repeated} ignored: the key had an outcome already" if repeated else ""
    _say(f"{name}: {counted} recorded{also}")


@app.command()
def report(
    name: Name,
    as_json: AsJson = False,
) -> None:
    """Print the verdict so far; repeated looks do not raise the error rate."""
    from ml.release.ab import experiment, records, routing
    from ml.release.ab.verdict import verdict

    ab_test = experiment.find(name)
    backend = open_backend(ab_test.place)
    outcomes, is_served = records.read(backend, ab_test), routing.is_served(backend, ab_test)
    result = verdict(ab_test, outcomes)
    if as_json:
        document = {**_as_json(ab_test), **vars(result), "served": is_served}
        write_json({**document, "records": _lines(outcomes)})
        return
    for arm, side, count in (("A", ab_test.a, result.a), ("B", ab_test.b, result.b)):
        mean = "" if count.mean is None else f", mean {count.mean:.4g}"
        typer.echo(
            f"{arm}, version {side.version}: {count.assigned:,} keys, "
            f"{count.outcomes:,} outcomes{mean}"
        )
    for what, lines in _lines(outcomes).items():
        if lines:
            _say(f"excluded: {lines} {what}")
    typer.echo(result.sentence)
    if not is_served and not result.stop:
        _say(f"no key is sent to B now: ml ab serve {name} --approved-by NAME")


@app.command("list")
def list_() -> None:
    """List the experiments of this machine, each with its verdict."""
    from ml.release.ab import experiment, records
    from ml.release.ab.verdict import verdict

    if not experiment.every():
        _say("no experiment; next: ml ab start --help")
    for name in experiment.every():
        ab_test = experiment.find(name)
        outcomes = records.read(open_backend(ab_test.place), ab_test)
        sentence = verdict(ab_test, outcomes).sentence
        typer.echo(
            f"{name}: {ab_test.model} {ab_test.a.version} against {ab_test.b.version}: {sentence}"
        )


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _read_outcomes(path: Path) -> list[tuple[str, float]]:
    import csv

    outcomes = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            for number, row in enumerate(csv.reader(stream), 1):
                if row:
                    outcomes.append(_outcome(row, Place(str(path), number)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(Problem("unreadable", f"{path}: {error}", "lines of KEY,VALUE")) from None
    return outcomes


def _outcome(row: list[str], place: Place) -> tuple[str, float]:
    try:
        key, value = row
        return key, float(value)
    except ValueError:
        line = f"`{','.join(row)[:80]}` is not a key and a number"
        raise UserError(Problem("bad-outcome", line, "KEY,VALUE", "correct it", place)) from None


def _as_json(ab_test: Experiment) -> dict[str, object]:
    hidden = ("salt", "schema_version")
    fields = {name: value for name, value in vars(ab_test).items() if name not in hidden}
    return {**fields, "planned": ab_test.planned, "fixed_sample_size": ab_test.fixed_sample_size}


def _lines(outcomes: Records) -> dict[str, int]:
    return {
        "repeated": outcomes.repeated,
        "contradicting": outcomes.contradicting,
        "unreadable": outcomes.unreadable,
        "misrouted": outcomes.misrouted,
    }
