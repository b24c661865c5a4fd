"""`ml sweep`, `ml select`: explain a sweep's trials, list AutoML's models, and rank the trials."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ml.cli.app import open_backend
from ml.cli.options import AsJson, Goal, Metric, On, repeated_on
from ml.cli.render.output import write_json, write_table
from ml.core.errors import Problem, UserError
from ml.core.terminal import printable
from ml.reports.formatting import number as four_digits
from ml.reports.formatting import short

if TYPE_CHECKING:
    from ml.backends.runs import Run, RunStore
    from ml.release.selection.selection import Ranked, Selected, Selection
    from ml.reports.explanation import Ending, Explanation
    from ml.reports.sweep import Trial

app = typer.Typer(no_args_is_help=True)
# Criteria of a selection besides quality → the header of their column, with the unit.
UNITS = {"latency": "latency ms", "cost": "cost s", "stability": "spread"}


@app.command()
def explain(
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", help="A sweep, or one trial of it; `latest`.")
    ] = "latest",
    trial: Annotated[int | None, typer.Option(min=0, help="Only this trial, in full.")] = None,
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """Show the origin of every trial, why it ended, and the importance of each parameter."""
    from ml.reports import explanation

    store = open_backend(on).runs
    sweep, trial_number = _sweep(store, run)
    number = trial if trial is not None else trial_number
    explained = explanation.explain(sweep, store)
    trials = {row.sample_number: row for row in explained.sweep.trials}
    if number is not None and number not in trials:
        expected = f"0 to {max(trials)}" if trials else "none has started yet"
        hint = f"ml sweep explain {sweep.name}"
        raise UserError(Problem("no-such-trial", f"trial {number}", expected, hint))
    if as_json:
        write_json(explanation.as_json(explained, number))
        return
    for note in explained.notes:
        typer.echo(f"note: {note}", err=True)
    if number is not None:
        _show_trial(explained, trials[number])
    else:
        _show_sweep(explained)
        one_trial = f"ml sweep explain {sweep.name} --trial N{repeated_on(on)}"
        typer.echo(f"one trial in full: {one_trial}", err=True)


@app.command()
def leaderboard(
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", help="A run of an AutoML job; `latest`.")
    ] = "latest",
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """Show the models of an AutoML job, their cost, and its guardrails for the table."""
    from ml.reports import explanation
    from ml.reports.leaderboard import leaderboard as leaderboard_of

    store = open_backend(on).runs
    search, _ = _sweep(store, run)
    board = leaderboard_of(search, explanation.explain(search, store).sweep)
    if as_json:
        rows = [{**vars(entry), "trial": entry.trial.run.name} for entry in board.entries]
        write_json({"metric": board.metric, "trials": rows, "search": board.facts})
        return
    typer.echo(f"{search.name}: {board.metric}")
    write_table(
        ("", "trial", "family", board.metric, "±", "seconds", "ms/row", "origin"),
        [
            [
                f"{rank}.",
                str(entry.trial.sample_number),
                entry.family,
                four_digits(entry.value),
                *("–" if n is None else f"{n:.2g}" for n in (entry.spread, entry.seconds)),
                "–" if entry.row_ms is None else f"{entry.row_ms:.2g}",
                entry.origin,
            ]
            for rank, entry in enumerate(board.entries, 1)
        ],
    )
    for sentence in board.sentences():
        typer.echo(printable(sentence), err=True)


def _sweep(store: RunStore, name: str) -> tuple[Run, int | None]:
    """Return the sweep `name` and None, or the sweep of the trial `name` and the trial's number.

    "latest" is the latest sweep. Raises UserError if there is no such sweep.
    """
    if name == "latest":
        for entry in store.entries():
            for run in (entry.run, *entry.run.below()):
                if run.trials:
                    return run, None
        expected = "a run of a sweep job, or of a pipeline with a sweep step"
        actual, hint = "no sweep has been run on this machine", "start one: ml run SPEC"
        raise UserError(Problem("no-sweep", actual, expected, hint))
    run = store.find(name)
    if run.trials:
        return run, None
    parent, sample = store.parent(run), store.sample(run)
    if parent is not None and parent.trials and sample is not None:
        return parent, sample.number
    sweeps = [step for step in run.below() if step.trials]
    if len(sweeps) == 1:
        return sweeps[0], None
    names = ", ".join(step.name for step in sweeps)
    description = f"has {len(sweeps)} sweep steps" if sweeps else "is not a sweep"
    hint = f"name one of them: {names}" if sweeps else "ml runs list shows every run"
    raise UserError(Problem("not-a-sweep", f"{run.name} {description}", "a sweep or a trial", hint))


def _show_sweep(explained: Explanation) -> None:
    from ml.reports.sweep import short_origin

    sweep = explained.sweep
    typer.echo(f"{explained.run.name}: {sweep.goal} {sweep.metric}, {sweep.sampling}")
    rows = []
    for trial in sweep.trials:
        value = "" if trial.value is None else four_digits(trial.value)
        outcome = "best" if trial is sweep.best else trial.outcome
        origin = short_origin(trial.origin) or "?"
        number = str(trial.sample_number)
        rows.append([number, value, outcome, origin, _reason(explained, trial)])
    write_table(("trial", sweep.metric, "outcome", "origin", "reason"), rows)
    typer.echo("")
    for line in _importance(explained):
        typer.echo(line)


def _reason(explained: Explanation, trial: Trial) -> str:
    """Return the reason for a trial's early end, failure or sampled values, in one line; or ""."""
    if ending := explained.endings.get(trial.number):
        return _ending_text(ending)
    if trial.outcome not in ("completed", "running"):
        return trial.reason
    if preferences := explained.preferences(trial):
        first = preferences[0]
        others = f"{first.among_others:.0%} of the others"
        value = _value_text(first.value)
        return f"{first.name} {value}: the good trials had {first.good_values}, like {others}"
    return trial.origin_text if trial.origin.get("kind") == "given" else ""


def _ending_text(ending: Ending) -> str:
    return (
        f"{ending.policy} at interval {ending.interval}: best so far {four_digits(ending.value)}, "
        f"threshold {four_digits(ending.threshold)}, missed by {four_digits(ending.missed_by)}"
    )


def _show_trial(explained: Explanation, trial: Trial) -> None:
    from ml.cli.render.runs_text import parameters

    value = "no value" if trial.value is None else four_digits(trial.value)
    typer.echo(f"{trial.run.name}: {explained.sweep.metric} {value}, {trial.outcome}")
    values = {name: _value_text(setting) for name, setting in trial.values.items()}
    typer.echo(f"  values  {parameters(values)}")
    typer.echo(f"  from    {printable(trial.origin_text or 'not recorded')}")
    if ending := explained.endings.get(trial.number):
        typer.echo(f"  ended   {_ending_text(ending)}")
    elif trial.reason:
        typer.echo(f"  why     {printable(trial.reason)}")
    if preferences := explained.preferences(trial):
        typer.echo("")
        rows = [
            [entry.name, _value_text(entry.value), entry.good_values, f"{entry.among_others:.0%}"]
            for entry in preferences
        ]
        write_table(("parameter", "value", "good trials", "other trials"), rows, 2)


def _importance(explained: Explanation) -> Iterator[str]:
    """Yield lines about the importance of the parameters and its reliability."""
    from ml.reports.explanation import importance as importance_of

    importance = importance_of(explained.sweep)
    if not importance.shares:
        yield f"importance of the parameters: unknown, {importance.reason}"
        return
    shares = ", ".join(f"{name} {share:.0%}" for name, share in importance.shares)
    yield f"importance of the parameters (fANOVA): {shares}"
    doubt = ": too low to rely on the shares" if importance.is_weak else ""
    yield (
        f"  from {importance.trials} trials; R² {max(0.0, importance.explained):.2f} on held-out "
        f"trials{doubt}"
    )


def _value_text(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value_text(item)}" for key, item in value.items()) + "}"
    return short(value)


def select(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN…]", help="Sweeps, pipelines or runs.")
    ] = None,
    metric: Metric = None,
    goal: Goal = None,
    limit: Annotated[int, typer.Option(min=0, help="Number of rows; 0 for all.")] = 10,
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """Rank trials by quality, latency, cost and stability, weighed by the project's select.yml."""
    from ml.release.selection.selection import choose

    backend = open_backend(on)
    named = [backend.runs.find(name) for name in runs or ["latest"]]
    selected = choose(backend, named, metric, goal)
    if as_json:
        write_json(_selection_json(selected))
        return
    print_selection(selected, limit)
    first = selected.selection.by_score or selected.selection.by_metric
    project = selected.project or "PROJECT"
    typer.echo(f"next: ml release propose {project} --run {first.candidate.name}", err=True)


def print_selection(selected: Selected, limit: int = 0) -> None:
    """Print the ranking on stdout, best score first, and its explanation on stderr.

    `front` marks the trials on the Pareto front; a `limit` of 0 prints all.
    """
    from ml.release.selection import explanation

    selection = selected.selection
    rows = selection.ranked[:limit] if limit else selection.ranked
    terms = [term for term in UNITS if term in selection.compared]
    head = ["", "behind", selection.metric, *(UNITS[term] for term in terms)]
    cells = [_selection_row(selection, row, terms) for row in rows]
    write_table([*head, "rank by metric", "Pareto"], cells)
    if len(rows) < len(selection.ranked):
        typer.echo(f"{len(rows)} of {len(selection.ranked)}; all: --limit 0", err=True)
    typer.echo(f"{explanation.formula(selection)}; {explanation.scale(selection)}", err=True)
    for sentence in explanation.sentences(selection):
        typer.echo(sentence, err=True)
    for note in selected.notes:
        typer.echo(f"note: {note}", err=True)


def _selection_row(selection: Selection, ranked: Ranked, terms: list[str]) -> list[str]:
    from ml.cli.render.runs_text import number

    behind = selection.behind(ranked)
    measured = ranked.candidate.terms
    cells = [number(measured["quality"] or 0.0)]
    cells += ["–" if (value := measured.get(term)) is None else f"{value:.3g}" for term in terms]
    front = {True: "front", False: "", None: "?"}[ranked.on_front]
    distance = "–" if behind is None else f"{behind:.2f}"
    return [ranked.candidate.label, distance, *cells, f"{ranked.by_metric}.", front]


def _selection_json(selected: Selected) -> dict[str, Any]:
    from ml.release.selection import explanation

    selection = selected.selection
    first = selection.by_score
    return {
        "metric": selection.metric,
        "goal": selection.goal,
        "project": selected.project or None,
        "weights": selection.weights.source or None,
        "formula": explanation.formula(selection),
        "first_by_score": first.candidate.name if first else None,
        "first_by_metric": selection.by_metric.candidate.name,
        "left_out": selection.left_out,
        "compared": selection.compared,
        "sentences": list(explanation.sentences(selection)),
        "notes": selected.notes,
        "ranked": [
            {
                "run": row.candidate.name,
                "terms": row.candidate.terms,
                "parts": row.parts,
                "score": row.score,
                "behind": selection.behind(row),
                "by_score": row.by_score,
                "by_metric": row.by_metric,
                "on_front": row.on_front,
                "missing": row.missing,
            }
            for row in selection.ranked
        ],
    }
