"""`ml demo`: from a pipeline to an answered question, each step the command that it stands for.

The steps are the ones that a person can type; each is named before it runs.
"""

from __future__ import annotations

import getpass
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ml.specs.problems import Exit

if TYPE_CHECKING:
    from ml.backends.base import Run
    from policies.promotion.evidence import Evidence

QUESTION = "how do I use spot nodes?"
SPLITS = {
    "test_known": "new wordings of entries it knows",
    "test_unseen": "entries it has never seen",
}
METRICS = {
    "gain_at_1": ("right answer first", "{:.0%}"),
    "gain_at_3": ("right answer in the first three", "{:.0%}"),
    "mean_rank": ("mean place of the right answer", "{:.1f}"),
}


def command(
    project: Annotated[str, typer.Argument(help="A folder under ml/projects.")] = "faq_matching",
    spec: Annotated[str, typer.Option(help="A sweep or pipeline, in the project's jobs/.")] = (
        "pipeline.yml"
    ),
    question: Annotated[str, typer.Option(help="What to ask the served model.")] = QUESTION,
) -> None:
    """Sweep, evaluate, gate, serve, ask. A candidate that is no better leaves the champion."""
    from ml.backends.local.tracking.tracking import prepare

    began = time.monotonic()
    prepare()
    from ml.cli import costs, verdicts
    from ml.cli.invoke import shown_answers
    from ml.release import project as projects
    from ml.release.apply import apply
    from ml.release.ask import ask
    from ml.release.propose import propose

    found = projects.find(project)
    path = found.folder / "jobs" / spec
    _step(1, f"ml run {_relative(path)}")
    done = _run(path)
    _step(2, f"ml release propose {found.name} --run {done.name}")
    proposal = propose(found.name, done.name, prices=costs.of_instance("local"))
    _quality(proposal.evidence)
    verdicts.show(proposal.decision)
    if proposal.decision.allowed:
        who = getpass.getuser()
        _step(3, f"ml release apply {found.name} --to local --approved-by {who}")
        applied = apply(found.name, "local", who)
        replaced = applied.replaced if applied else None
        instead = f", in place of version {replaced}" if replaced else ""
        typer.echo(f"{proposal.model} {proposal.version} serves now{instead}", err=True)
    elif proposal.champion == proposal.version:
        typer.echo("the best trial is the very model that serves already: nothing to do", err=True)
    elif proposal.champion:
        typer.echo(
            f"version {proposal.champion} stays the champion: version {proposal.version} "
            "was not shown to be better",
            err=True,
        )
    else:
        raise typer.Exit(Exit.GATE_SAID_NO)
    endpoint = proposal.model
    _step(4, f'ml invoke {endpoint} "{question}"')
    reply = ask(endpoint, {"question": question})
    for answer in shown_answers(reply.body):
        typer.echo(answer)
    typer.echo(f"done in {time.monotonic() - began:.0f} s; next:", err=True)
    typer.echo('  make ask Q="what does a sweep cost?"', err=True)
    typer.echo("  make demo        again: promoted only if better", err=True)


def _run(path: Path) -> Run:
    from ml.backends.local.backend import LocalBackend
    from ml.cli import live
    from ml.specs import load, planning

    plan = planning.plan(load.load(path))
    backend = LocalBackend()
    for difference in backend.differences(plan):
        typer.echo(difference, err=True)
    with live.watching(plan, True) as watch:
        run = backend.run(plan, watch)
    typer.echo(live.summary(plan, run), err=True)
    if run.status != "Completed":
        raise typer.Exit(Exit.RUN_FAILED)
    return run


def _quality(evidence: Evidence) -> None:
    """The table that a newcomer reads: ours beside the reference recipe, with 95 % intervals."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="On questions that training never saw", title_justify="left")
    for column in ("", "this model", "95 % interval", "reference recipe"):
        table.add_column(column)
    for split, of_split in SPLITS.items():
        table.add_section()
        table.add_row(f"[bold]{of_split}[/bold]")
        for metric, (title, form) in METRICS.items():
            ours = evidence.metrics.get(split, {}).get(metric)
            theirs = evidence.baseline.get(split, {}).get(metric)
            if ours is None or ours.value is None or ours.low is None or ours.high is None:
                continue
            other = "" if theirs is None or theirs.value is None else form.format(theirs.value)
            interval = f"{form.format(ours.low)} – {form.format(ours.high)}"
            table.add_row(f"  {title}", form.format(ours.value), interval, other)
    Console(stderr=True).print(table)


def _step(number: int, typed: str) -> None:
    typer.secho(f"\n[{number}/4] {typed}", bold=True, err=True)


def _relative(path: Path) -> str:
    from ml.specs.repository import shown

    return shown(path)
