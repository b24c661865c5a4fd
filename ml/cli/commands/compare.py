"""`ml compare`: compare a candidate with the champion, in a terminal or a pull-request comment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ml.cli.app import open_backend
from ml.cli.options import On
from ml.cli.render.output import show_step, write_json, write_table
from ml.core.terminal import printable
from ml.reports.formatting import amount, number, signed

if TYPE_CHECKING:
    from ml.measures.schema import Estimate
    from ml.release.comparison import Amount, Comparison, MetricComparison


def compare(
    candidate: Annotated[str, typer.Argument(help="MODEL:VERSION, a run, or champion@ENV.")],
    champion: Annotated[
        str | None, typer.Argument(help="The same; without it, the environment's champion.")
    ] = None,
    form: Annotated[
        Literal["text", "md", "json"],
        typer.Option("--format", help="text for people, md for a pull request, json for programs."),
    ] = "text",
    to: Annotated[
        str | None, typer.Option("--env", help="Default: that of champion@ENV, else local.")
    ] = None,
    on: On = "local",
) -> None:
    """Show metrics with paired intervals, slices, gates, latency, cost and lineage."""
    from ml.release.comparison import versus
    from ml.reports.pull_requests.comparison import comment

    backend = open_backend(on)
    comparison = versus(backend, candidate, champion, to, show_step)
    document = comparison.to_json()
    if form == "json":
        write_json(document)
    elif form == "md":
        typer.echo(comment(document, _repository()), nl=False)
    else:
        print_comparison(comparison)


def print_comparison(comparison: Comparison) -> None:
    """Print the metrics, the primary metric's differences, the gates and the missing evidence."""
    from ml.cli.render import release_text
    from ml.reports.charts.forest import text_plot
    from ml.reports.json_values import Value
    from ml.reports.pull_requests.comparison import difference_title, forest_rows

    names = [side.name for side in (comparison.candidate, comparison.champion) if side]
    head = ["metric", "on", *names, *(["difference"] if comparison.champion else [])]
    write_table(head, [_row(row)[: len(head)] for row in comparison.metrics])
    compared = Value(comparison.to_json())
    if plot_rows := forest_rows(compared):
        typer.echo(f"\n{printable(difference_title(compared))}")
        for line in text_plot(plot_rows):
            typer.echo(line)
    typer.echo("")
    write_table(["", *names], [_amounts(row)[: len(names) + 1] for row in comparison.amounts])
    if comparison.decision:
        release_text.show_decision(comparison.decision)
    if comparison.unpaired:
        typer.echo(f"note: not compared unit by unit: {comparison.unpaired}", err=True)
    for note in comparison.notes:
        typer.echo(f"note: {note}", err=True)
    if comparison.missing:
        typer.echo(f"missing from the evidence: {', '.join(comparison.missing)}", err=True)


def _row(row: MetricComparison) -> list[str]:
    text = "not compared by row"
    if (by := row.difference) is not None:
        text = f"{signed(by.mean)} ({signed(by.low)} to {signed(by.high)}) {row.verdict}"
    return [row.metric, row.place, _value(row.ours), _value(row.theirs), text.rstrip()]


def _value(estimate: Estimate | None) -> str:
    return "missing" if estimate is None or estimate.value is None else number(estimate.value)


def _amounts(row: Amount) -> list[str]:
    return [row.what, amount(row.ours, row.unit), amount(row.theirs, row.unit)]


def _repository() -> str:
    """Return the URL of the repository that this GitHub workflow runs in; "" outside workflows."""
    server, name = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    return f"{server}/{name}" if server and name else ""
