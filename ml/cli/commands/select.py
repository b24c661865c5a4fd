"""`ml select`: the trial to take, by a weighted score beside the primary metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ml.backends.choice import open_backend
from ml.cli.options import AsJson, On

if TYPE_CHECKING:
    from ml.release.selection.selection import Ranked, Selected, Selection

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
    from ml.release.selection.selection import choose

    if goal not in (None, *ranking.GOALS):
        raise Refused(Problem("no-such-goal", f"--goal {goal}", " or ".join(ranking.GOALS)))
    store = open_backend(on).runs
    selected = choose(store, [store.find(name) for name in runs or ["latest"]], metric, goal)
    if as_json:
        json_out.write(document(selected))
        return
    print_selection(selected, limit)
    first = selected.selection.by_score or selected.selection.by_metric
    project = selected.project or "PROJECT"
    typer.echo(f"next: ml release propose {project} --run {first.candidate.name}", err=True)


def print_selection(selected: Selected, limit: int = 0) -> None:
    """Print the ranking on stdout, and its explanation on stderr."""
    from ml.release.selection import explanation

    table(selected.selection, limit)
    typer.echo(explanation.formula(selected.selection), err=True)
    for sentence in explanation.sentences(selected.selection):
        typer.echo(sentence, err=True)
    for note in selected.notes:
        typer.echo(f"note: {note}", err=True)


def table(selection: Selection, limit: int = 0) -> None:
    """Print the ranking, the first by the score on top; `front` marks the Pareto front."""
    from ml.cli.render import tables

    rows = selection.ranked[:limit] if limit else selection.ranked
    terms = [term for term in COLUMNS if term in selection.compared]
    head = ["", "score", selection.metric, *(COLUMNS[term] for term in terms)]
    tables.write([*head, "by metric", "Pareto"], [_row(row, terms) for row in rows])
    if len(rows) < len(selection.ranked):
        typer.echo(f"{len(rows)} of {len(selection.ranked)}; all: --limit 0", err=True)


def _row(ranked: Ranked, terms: list[str]) -> list[str]:
    from ml.cli.render.live import number

    score = "–" if ranked.score is None else f"{ranked.score:.2f}"
    measured = ranked.candidate.terms
    cells = [number(measured["quality"] or 0.0)]
    cells += ["–" if (value := measured.get(term)) is None else f"{value:.3g}" for term in terms]
    front = {True: "front", False: "", None: "?"}[ranked.on_front]
    return [ranked.candidate.label, score, *cells, f"{ranked.by_metric}.", front]


def document(selected: Selected) -> dict[str, Any]:
    """The selection for a program."""
    from ml.cli.render import json_out
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
        "left_out": dict(selection.left_out),
        "compared": list(selection.compared),
        "said": list(explanation.sentences(selection)),
        "notes": list(selected.notes),
        "ranked": [
            {
                "run": row.candidate.name,
                "terms": json_out.plain(dict(row.candidate.terms)),
                "parts": dict(row.parts),
                "score": row.score,
                "by_score": row.by_score,
                "by_metric": row.by_metric,
                "on_front": row.on_front,
                "missing": dict(row.missing),
            }
            for row in selection.ranked
        ],
    }
