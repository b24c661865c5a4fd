"""`ml compare`: a candidate beside the champion, as a pull-request comment or for a terminal."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ml.backends.choice import open_backend

if TYPE_CHECKING:
    from ml.backends.runs import Event
    from ml.release.comparison import Amount, Compared, Row
    from policies.promotion.evidence import Estimate


def command(
    candidate: Annotated[str, typer.Argument(help="MODEL:VERSION, a run, or champion@ENV.")],
    champion: Annotated[
        str | None, typer.Argument(help="The same; without it, the environment's champion.")
    ] = None,
    form: Annotated[
        Literal["text", "md", "json"],
        typer.Option("--format", help="text for people, md for a pull request, json for programs."),
    ] = "text",
    to: Annotated[
        str | None, typer.Option("--env", "--to", help="Default: that of champion@ENV, else local.")
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(help="Write the picture of the differences there, as SVG.")
    ] = None,
    chart_url: Annotated[
        str, typer.Option(help="Where that file can be seen: md shows it in place of letters.")
    ] = "",
    report_url: Annotated[str, typer.Option(help="The run's report, to link in md.")] = "",
    repository: Annotated[
        str, typer.Option(help="https://…/OWNER/NAME, to link commits in md.")
    ] = "",
) -> None:
    """Metrics with paired intervals, slices, gates, latency, cost, lineage. Decides nothing."""
    from ml.cli.render import json_out
    from ml.core import files
    from ml.release.comparison import versus
    from ml.reports.charts.forest import svg_file
    from ml.reports.comment import comment, forest_rows

    result = versus(open_backend(), candidate, champion, to, _watch)
    if chart is not None:
        title = f"{result.comparison.primary}: candidate minus champion"
        files.replace(chart, svg_file(forest_rows(result.comparison), title))
    if form == "json":
        json_out.write(document(result))
    elif form == "md":
        links = {"report": report_url} if report_url else {}
        typer.echo(comment(result, repository or _repository(), chart_url, links), nl=False)
    else:
        _print_comparison(result)


def document(result: Compared) -> dict[str, Any]:
    """The comparison for a program."""
    from ml.cli.render import json_out

    comparison = result.comparison

    def estimate(of: Estimate | None) -> Any:
        return json_out.plain(asdict(of)) if of else None

    def row(of: Row) -> dict[str, Any]:
        return {
            "place": of.place,
            "metric": of.metric,
            "candidate": estimate(of.ours),
            "champion": estimate(of.theirs),
            "difference": asdict(of.by) if of.by else None,
            "verdict": of.verdict or None,
        }

    return {
        "model": result.model,
        "environment": result.environment,
        "candidate": {"name": comparison.candidate.name, "digest": comparison.candidate.digest},
        "champion": (
            {"name": comparison.champion.name, "digest": comparison.champion.digest}
            if comparison.champion
            else None
        ),
        "primary_metric": comparison.primary,
        "metrics": [row(each) for each in comparison.metrics],
        "slices": [row(each) for each in comparison.slices],
        "amounts": [asdict(row) for row in comparison.amounts],
        "decision": result.decision.to_json() if result.decision else None,
        "lineage": asdict(comparison.candidate.evidence.lineage),
        "missing": list(comparison.missing),
        "unpaired": comparison.unpaired or None,
        "notes": list(result.notes),
    }


def _print_comparison(result: Compared) -> None:
    from ml.cli.render import tables, verdicts
    from ml.reports.charts.forest import text_plot
    from ml.reports.comment import forest_rows

    comparison = result.comparison
    head = ["metric", "on", comparison.candidate.name]
    head += [comparison.champion.name, "difference"] if comparison.champion else []
    tables.write(head, [_row(row, comparison.champion is not None) for row in comparison.metrics])
    if plot_rows := forest_rows(comparison):
        typer.echo(f"\n{tables.plain(comparison.primary)}, candidate minus champion")
        for line in text_plot(plot_rows):
            typer.echo(line)
    typer.echo("")
    head = [
        "",
        comparison.candidate.name,
        *([comparison.champion.name] if comparison.champion else []),
    ]
    tables.write(
        head, [_amount(row, comparison.champion is not None) for row in comparison.amounts]
    )
    if result.decision:
        verdicts.show(result.decision)
    if comparison.unpaired:
        typer.echo(f"note: not compared unit by unit: {comparison.unpaired}", err=True)
    for note in result.notes:
        typer.echo(f"note: {note}", err=True)
    if comparison.missing:
        typer.echo(f"missing from the evidence: {', '.join(comparison.missing)}", err=True)


def _row(row: Row, against: bool) -> list[str]:
    from ml.reports.formatting import number, signed

    def value_text(of: Estimate | None) -> str:
        return "missing" if of is None or of.value is None else number(of.value)

    cells = [row.metric, row.place, value_text(row.ours)]
    if not against:
        return cells
    by = row.by
    difference = (
        f"{signed(by.mean)} ({signed(by.low)} to {signed(by.high)})" if by else "not paired"
    )
    return [*cells, value_text(row.theirs), f"{difference} {row.verdict}".rstrip()]


def _amount(amount: Amount, against: bool) -> list[str]:
    from ml.reports.formatting import number

    values = [amount.ours, amount.theirs] if against else [amount.ours]
    return [
        amount.what,
        *("missing" if v is None else f"{number(v)} {amount.unit}".rstrip() for v in values),
    ]


def _repository() -> str:
    """Where a workflow runs, in the variables that GitHub sets."""
    server, name = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")
    return f"{server}/{name}" if server and name else ""


def _watch(event: Event) -> None:
    if event.kind == "started":
        typer.echo(f"scoring the champion again ({event.run.folder})", err=True)
