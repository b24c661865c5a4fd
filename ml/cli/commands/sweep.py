"""`ml sweep explain`: why a sweep tried what it tried, and what it found out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ml.backends.choice import open_backend
from ml.cli.options import AsJson, On
from ml.core.errors import Problem, Refused

if TYPE_CHECKING:
    from ml.backends.runs import Run, RunStore
    from ml.reports.explanation import ExplainedTrial, Explanation

app = typer.Typer(help="Sweeps of this machine.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `ml sweep` a group while it has one command."""


@app.command()
def explain(
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", help="A sweep, or one trial of it; `latest`.")
    ] = "latest",
    trial: Annotated[int | None, typer.Option(min=0, help="This trial alone, in full.")] = None,
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """Where every trial came from, what made it likely, what ended it, and what mattered."""
    from ml.reports import explanation

    store = open_backend(on).runs
    sweep, trial_number = _sweep(store, run)
    number = trial if trial is not None else trial_number
    explained = explanation.explain(sweep, store)
    numbers = [each.number for each in explained.trials]
    if number is not None and number not in numbers:
        last = f"0 to {max(numbers)}" if numbers else "none has started yet"
        raise Refused(Problem("no-such-trial", f"{sweep.name} has no trial {number}", last))
    if as_json:
        document = explanation.as_json(explained, number)
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    for note in explained.notes:
        typer.echo(f"note: {note}", err=True)
    if number is not None:
        _show_trial(explained, next(each for each in explained.trials if each.number == number))
    else:
        _show_sweep(explained)


def _sweep(store: RunStore, name: str) -> tuple[Run, int | None]:
    """The sweep of that name, and the trial number if the name is that of a trial."""
    if name == "latest":
        for entry in store.entries():
            for run in (entry.run, *entry.run.below()):
                if run.trials:
                    return run, None
        raise Refused(
            Problem(
                "no-sweep",
                "no sweep has been run on this machine",
                "a run of a sweep job, or of a pipeline with a sweep step",
                "start one: ml run SPEC",
            )
        )
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
    description = (
        f"{run.name} is no sweep" if not sweeps else f"{run.name} has {len(sweeps)} sweep steps"
    )
    hint = f"name one of them: {names}" if sweeps else "`ml runs list` shows what there is"
    raise Refused(Problem("not-a-sweep", description, "a sweep, or one of its trials", hint))


def _show_sweep(explained: Explanation) -> None:
    from ml.cli.render import tables
    from ml.reports.formatting import number
    from ml.reports.origins import short

    sweep = explained.sweep
    typer.echo(f"{explained.run.name}: {sweep.goal} {sweep.metric}, {sweep.sampling}")
    rows = []
    for each in explained.trials:
        value = "" if each.trial.value is None else number(each.trial.value)
        best = "best" if each.trial.run.name == explained.run.best else each.trial.outcome
        why = _reason(explained, each)
        rows.append([str(each.number), value, best, short(each.origin) or "?", why])
    tables.write(("trial", sweep.metric, "outcome", "from", "why"), rows)
    typer.echo("")
    for line in _importance(explained):
        typer.echo(line)
    typer.echo(f"one in full: ml sweep explain {explained.run.name} --trial N", err=True)


def _reason(explained: Explanation, trial: ExplainedTrial) -> str:
    """The strongest reason for the trial, in one line."""

    if trial.ending:
        return _ending(trial)
    if trial.trial.outcome not in ("completed", "running"):
        return trial.trial.reason
    if preferences := explained.preferences(trial):
        first = preferences[0]
        others = f"{first.among_others:.0%} of the others"
        value = _value_text(first.value)
        return f"{first.name} {value}: the good trials had {first.good_values}, like {others}"
    return trial.sentence if trial.origin.get("kind") == "given" else ""


def _ending(trial: ExplainedTrial) -> str:
    from ml.reports.formatting import number

    assert trial.ending is not None
    ending = trial.ending
    return (
        f"{ending.policy} at interval {ending.interval}: best so far {number(ending.value)}, "
        f"threshold {number(ending.threshold)}, missed by {number(ending.missed_by)}"
    )


def _show_trial(explained: Explanation, trial: ExplainedTrial) -> None:
    from ml.cli.render import live, tables
    from ml.reports.formatting import number

    value = "no value" if trial.trial.value is None else number(trial.trial.value)
    typer.echo(f"{trial.trial.run.name}: {explained.sweep.metric} {value}, {trial.trial.outcome}")
    typer.echo(f"  values  {live.parameters({k: _value_text(v) for k, v in trial.values.items()})}")
    typer.echo(f"  from    {tables.plain(trial.sentence)}")
    if trial.ending:
        typer.echo(f"  ended   {_ending(trial)}")
    elif trial.trial.reason:
        typer.echo(f"  why     {tables.plain(trial.trial.reason)}")
    if preferences := explained.preferences(trial):
        typer.echo("")
        rows = [
            [each.name, _value_text(each.value), each.good_values, f"{each.among_others:.0%}"]
            for each in preferences
        ]
        tables.write(("parameter", "value", "the good trials had", "of the others"), rows, 2)


def _importance(explained: Explanation) -> Iterator[str]:
    """Which parameters mattered, and how reliable that is."""
    importance = explained.importance()
    if not importance.shares:
        yield f"what mattered: nothing can be said, {importance.reason}"
        return
    shares = ", ".join(f"{name} {share:.0%}" for name, share in importance.shares)
    accuracy = f"{max(0.0, importance.explained):.0%} of the variance of trials it has not seen"
    yield f"what mattered (fANOVA): {shares}"
    doubt = ": too little to rely on the order" if importance.is_weak else ""
    yield f"  a random forest on {importance.trials} trials predicts {accuracy}{doubt}"


def _value_text(value: object) -> str:
    from ml.reports.formatting import short

    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_value_text(item)}" for key, item in value.items()) + "}"
    return short(value)
