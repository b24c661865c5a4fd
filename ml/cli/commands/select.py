"""`ml select`: the trial to take, by a weighted score beside the primary metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ml.backends.choice import open_backend
from ml.cli.options import AsJson, On

if TYPE_CHECKING:
    from ml.release.selection.candidates import Selected
    from ml.release.selection.selection import Ranked, Selection

# The unit of each term where a column shows it.
COLUMNS = {"latency": "latency ms", "cost": "cost s", "stability": "spread"}


def command(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN…]", help="Sweeps, pipelines or runs.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="Default: the sweep's primary one.")] = None,
    goal: Annotated[str | None, typer.Option(help="maximize or minimize; as --metric.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Show so many; 0 for all.")] = 10,
    on: On = "local",
    as_json: AsJson = False,
) -> None:
    """Rank trials by quality, latency, cost and stability, weighed by the project's select.yml."""
    from ml.backends import ranking
    from ml.cli.render import json_out
    from ml.core.errors import Problem, Refused
    from ml.release.selection.candidates import choose

    if goal not in (None, *ranking.GOALS):
        raise Refused(Problem("no-such-goal", f"--goal {goal}", " or ".join(ranking.GOALS)))
    store = open_backend(on).runs
    found = choose(store, [store.find(name) for name in runs or ["latest"]], metric, goal)
    if as_json:
        json_out.write(document(found))
        return
    print_selection(found, limit)
    first = found.selection.by_score or found.selection.by_metric
    project = found.project or "PROJECT"
    typer.echo(f"next: ml release propose {project} --run {first.contender.name}", err=True)


def print_selection(found: Selected, limit: int = 0) -> None:
    """The ranking on stdout, what is to be said of it on stderr."""
    from ml.release.selection import explanation

    table(found.selection, limit)
    typer.echo(explanation.formula(found.selection), err=True)
    for sentence in explanation.sentences(found.selection):
        typer.echo(sentence, err=True)
    for note in found.notes:
        typer.echo(f"note: {note}", err=True)


def table(made: Selection, limit: int = 0) -> None:
    """Print the ranking, the first by the score on top; `front` marks the Pareto front."""
    from ml.cli.render import tables

    shown = made.ranked[:limit] if limit else made.ranked
    terms = [term for term in COLUMNS if term in made.compared]
    head = ["", "score", made.metric, *(COLUMNS[term] for term in terms)]
    tables.write([*head, "by metric", "Pareto"], [_row(one, terms) for one in shown])
    if len(shown) < len(made.ranked):
        typer.echo(f"{len(shown)} of {len(made.ranked)}; all: --limit 0", err=True)


def _row(one: Ranked, terms: list[str]) -> list[str]:
    from ml.cli.render.live import number

    score = "–" if one.score is None else f"{one.score:.2f}"
    measured = one.contender.terms
    cells = [number(measured["quality"] or 0.0)]
    cells += ["–" if (value := measured.get(term)) is None else f"{value:.3g}" for term in terms]
    front = {True: "front", False: "", None: "?"}[one.on_front]
    return [one.contender.label, score, *cells, f"{one.by_metric}.", front]


def document(found: Selected) -> dict[str, Any]:
    """The selection for a program."""
    from ml.cli.render import json_out
    from ml.release.selection import explanation

    made = found.selection
    first = made.by_score
    return {
        "metric": made.metric,
        "goal": made.goal,
        "project": found.project or None,
        "weights": made.weights.source or None,
        "formula": explanation.formula(made),
        "first_by_score": first.contender.name if first else None,
        "first_by_metric": made.by_metric.contender.name,
        "left_out": dict(made.left_out),
        "compared": list(made.compared),
        "said": list(explanation.sentences(made)),
        "notes": list(found.notes),
        "ranked": [
            {
                "run": one.contender.name,
                "terms": json_out.plain(dict(one.contender.terms)),
                "parts": dict(one.parts),
                "score": one.score,
                "by_score": one.by_score,
                "by_metric": one.by_metric,
                "on_front": one.on_front,
                "missing": dict(one.missing),
            }
            for one in made.ranked
        ],
    }
