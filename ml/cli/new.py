"""`ml new`: write a project for a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    name: Annotated[str, typer.Argument(help="The folder under ml/projects, and the model.")],
    table: Annotated[Path, typer.Option(help="A text file (CSV) with a header.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    task: Annotated[str, typer.Option(help="binary, multiclass or regression.")] = "",
    metric: Annotated[str, typer.Option(help="The metric that versions are compared by.")] = "",
    positive: Annotated[str, typer.Option(help="binary: the value of the positive class.")] = "",
    id: Annotated[str, typer.Option(help="The column that identifies a row.")] = "",
    group: Annotated[str, typer.Option(help="Rows with one value of it stay in one split.")] = "",
    time: Annotated[
        str,
        typer.Option(help="Split by the time in this column: the newest rows are the test set."),
    ] = "",
    horizon: Annotated[
        int | None,
        typer.Option(min=1, help="The forecast horizon in steps, of time series by --time."),
    ] = None,
    series: Annotated[
        list[str] | None,
        typer.Option(
            help="With --horizon: a column that identifies the series, at least 20. Of several, "
            "repeat the option, or separate them by commas."
        ),
    ] = None,
    kind: Annotated[
        str, typer.Option(help="sequence: a PyTorch model of a text by its words, served as ONNX.")
    ] = "",
    text: Annotated[
        str, typer.Option(help="With --kind sequence: the column of texts, if not the longest.")
    ] = "",
    slice: Annotated[str, typer.Option(help="The column whose values are the slices.")] = "",
    model: Annotated[
        str, typer.Option(help="The library: lightgbm, sklearn, torch or xgboost.")
    ] = "lightgbm",
    datastore: Annotated[
        str,
        typer.Option(
            help="azureml://… of the data; FILE is then a sample for the schema, and is not copied."
        ),
    ] = "",
) -> None:
    """Write a project for a table: jobs, training, evaluation, gates, endpoint.

    Settings without an option are inferred from the table; correct them in the project's
    data/NAME.schema.yml and gates.yml.
    """
    from ml.core import repository
    from ml.core.terminal import printable
    from ml.repository.scaffold.new import new, next_commands
    from ml.repository.scaffold.profile import Choices
    from ml.repository.scaffold.series import SeriesChoices

    choices = Choices(target, task, metric, positive, id, group, time, slice, kind, text)
    columns = [name for option in series or () for name in option.split(",")]
    forecasts = SeriesChoices(horizon or 0, columns) if horizon or series else None
    project = new(repository.root(), name, table, choices, datastore, model, forecasts)
    for path in project.files:
        print(repository.shown(path))
    about = project.profile
    summary = f"season {about.head['season']}" if forecasts else f"{len(about.features)} features"
    summary = f"text `{printable(about.features[0].name)}`" if kind else summary
    usual = "seasonal naive" if forecasts else "a constant prediction"
    slices = [*about.head["slices"], *(["size"] if forecasts else [])]  # type: ignore[misc]
    typer.echo(
        f"{about.task}: {summary}, {about.primary_metric} {about.baseline:.4g} for {usual}, "
        f"slices by {', '.join(map(str, slices))}",
        err=True,
    )
    excluded_columns = [
        f"{printable(column.name)} ({column.type})" for column in about.excluded_columns
    ]
    schema = next(path for path in project.files if path.name.endswith(".schema.yml"))
    if excluded_columns:
        typer.echo(f"not features: {', '.join(excluded_columns)}", err=True)
    if excluded_columns and forecasts:
        hint = "list numbers that are known for the whole horizon as `known`"
        typer.echo(f"  hint: {hint} in {repository.shown(schema)}", err=True)
    for doubt in about.doubts:
        typer.echo(f"please check: {doubt}", err=True)
    for leak in about.leaks:
        typer.echo(leak, err=True)
    if about.leaks:
        where = f"give it the type `text` in {repository.shown(schema)}"
        typer.echo(f"  hint: to exclude a column that leaks, {where}", err=True)
    typer.echo("next:", err=True)
    for line in next_commands(project):
        typer.echo(f"  {line}", err=True)
