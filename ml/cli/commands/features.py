"""`ml features plan | materialize | get | show`: the feature sets of the projects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ml.cli.options import AsJson
from ml.cli.render.output import show_step, write_json, write_table
from ml.core import repository
from ml.core.errors import Problem, UserError, errors
from ml.core.terminal import printable

if TYPE_CHECKING:
    from ml.features.definition import FeatureSet

app = typer.Typer(no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A feature set, or the path of its file.")
]
Source = Annotated[
    Path | None, typer.Option(help="Parquet or CSV files; default: the tag `local_source`.")
]
Store = Annotated[Path | None, typer.Option(help="The store; default: features in the local home.")]
Start = Annotated[str | None, typer.Option(help="First date, 2026-11-01; default: the source's.")]
End = Annotated[str | None, typer.Option(help="Last date, 2026-11-30; default: the source's.")]


@contextmanager
def _opened(
    name: str, store: Path | None, *, checks: bool = False
) -> Iterator[tuple[FeatureSet, Path]]:
    """Yield (feature set, store folder); `name` is a feature set or its file.

    Raises FeatureError as UserError. With `checks`, also raises the errors of `ml check`.
    """
    from ml.core.home import home
    from ml.features.definition import read
    from ml.features.timeline import FeatureError

    file = _file(name)
    if checks:
        from ml.specs.check.feature_sets import feature_set_problems

        if problems := errors(feature_set_problems(file)):
            raise UserError(*problems)
    try:
        yield read(file), store or home() / "features"
    except FeatureError as error:
        raise UserError(Problem(error.code, error.message, error.expected)) from error


def _file(name: str) -> Path:
    from ml.release.evidence.feature_sets import FOLDERS, definitions

    if name.endswith((".yml", ".yaml")):
        return Path(name)
    names = definitions(repository.root())
    if name not in names:
        expected = ", ".join(names) or f"one in {FOLDERS}"
        raise UserError.with_code("no-feature-set", f"there is no feature set `{name}`", expected)
    if len(names[name]) > 1:
        actual = f"{len(names[name])} files define `{name}`"
        expected = f"the path of one: {', '.join(map(str, names[name]))}"
        raise UserError.with_code("ambiguous-feature-set", actual, expected)
    return names[name][0]


def _source(feature_set: FeatureSet, source: Path | None) -> Path:
    path = source or feature_set.local_source
    if path is None:
        actual = f"`{feature_set.name}` has no source on this machine"
        raise UserError.with_code("missing-source", actual, "--source DIR, or a tag `local_source`")
    return path


def _date(option: str, text: str | None) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise UserError.with_code(
            "not-a-date", f"{option} {text}", "a date such as 2026-11-20"
        ) from None


@app.command()
def plan(
    name: Name,
    source: Source = None,
    store: Store = None,
    start: Start = None,
    end: End = None,
    as_json: AsJson = False,
) -> None:
    """Try the transformation, and list the partitions that `materialize` would write, and why."""
    from ml.features import materialize as engine

    first, last = _date("--start", start), _date("--end", end)
    with _opened(name, store, checks=True) as (feature_set, place):
        planned = engine.plan(feature_set, _source(feature_set, source), place, first, last)
    if as_json:
        write_json([{"date": day, "reason": reason} for day, reason in planned.partitions.items()])
    elif planned.partitions:
        write_table(["date", "reason"], [[*row] for row in planned.partitions.items()])
    else:
        typer.echo(f"{feature_set.name} is up to date", err=True)


@app.command()
def materialize(
    name: Name,
    source: Source = None,
    store: Store = None,
    start: Start = None,
    end: End = None,
    as_json: AsJson = False,
) -> None:
    """Write the partitions that new or late rows change, and the latest values per entity."""
    from ml.features import materialize as engine

    first, last = _date("--start", start), _date("--end", end)

    def show_day(day: str, count: int) -> None:
        show_step(f"{day}: {count:,} rows")

    with _opened(name, store, checks=True) as (feature_set, place):
        rows = _source(feature_set, source)
        planned = engine.materialize(feature_set, rows, place, first, last, notify=show_day)
    if as_json:
        write_json({"partitions": planned.partitions, "entities": planned.entities})
        return
    written = f"{len(planned.partitions)} partitions and {planned.entities:,} entities written"
    typer.echo(f"{feature_set.name} {feature_set.version}: {written}")


@app.command()
def get(
    name: Name,
    key: Annotated[list[str], typer.Argument(metavar="KEY…", help="A value for each key.")],
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """Print the latest values of an entity with their age."""
    from ml.features.online import KEYS, SqliteStore, local_path, look_up

    with _opened(name, store) as (feature_set, place):
        if len(key) != len(feature_set.keys):
            expected = " ".join(feature_set.keys)
            raise UserError.with_code("wrong-keys", f"{len(key)} keys for `{name}`", expected)
        keys: dict[str, object] = {}
        for (column, kind), text in zip(feature_set.keys.items(), key, strict=True):
            try:
                keys[column] = KEYS[kind](text)
            except (TypeError, ValueError):
                raise UserError.with_code("wrong-keys", f"key `{column}` is {text}", kind) from None
        answer = look_up(
            feature_set, SqliteStore(feature_set, local_path(feature_set, place)), keys
        )
    if as_json:
        age = None if answer.age is None else answer.age.total_seconds()
        values = {"status": answer.status, "values": answer.values, "event": answer.event}
        write_json({**values, "age_seconds": age})
        return
    age_text = "" if answer.age is None else f", {_rounded(answer.age)}"
    typer.echo(printable(f"{' '.join(key)}: {answer.status}{age_text}"), err=True)
    write_table(["feature", "value"], [[n, str(v)] for n, v in answer.values.items()])


@app.command()
def show(name: Name, store: Store = None, as_json: AsJson = False) -> None:
    """Show a feature set: definition, partitions, age of the last event, nulls and means."""
    from ml.features import store as stored_features

    with _opened(name, store) as (feature_set, place):
        state = stored_features.state(feature_set, place)
        rows = stored_features.stored(feature_set, place)
    event, arrival = stored_features.ages(feature_set, rows, datetime.now(UTC))
    features = []
    for feature, kind in feature_set.features.items():
        column = rows.get_column(feature)
        mean = column.mean() if column.dtype.is_numeric() else None
        nulls = column.null_count() / len(rows)
        features.append({"feature": feature, "type": kind, "nulls": nulls, "mean": mean})
    if as_json:
        write_json(
            {
                "name": feature_set.name,
                "version": feature_set.version,
                "file": feature_set.file,
                "keys": feature_set.keys,
                "digest": feature_set.digest,
                "window": state.window,
                "partitions": state.partitions,
                "rows": len(rows),
                "last_event": event.last,
                "last_arrival": arrival.last,
                "age_seconds": event.age.total_seconds(),
                "late": arrival.is_late,
                "features": features,
            }
        )
        return
    window = " to ".join(state.window or ())
    count = sum(1 for digest in state.partitions.values() if digest)
    typer.echo(f"{feature_set.name} {feature_set.version}, by {', '.join(feature_set.keys)}")
    typer.echo(f"{count} partitions with {len(rows):,} rows, {window}")
    for recency in (event, arrival):
        late = f", late: at most {recency.limit}" if recency.is_late else ""
        typer.echo(
            f"last {recency.what} {recency.last:%Y-%m-%d %H:%M} UTC, {_rounded(recency.age)}{late}"
        )
    table = [
        [
            *(str(row["feature"]), str(row["type"]), f"{row['nulls']:.1%}"),
            "" if row["mean"] is None else f"{row['mean']:.4g}",
        ]
        for row in features
    ]
    write_table(["feature", "type", "null", "mean"], table)


def _rounded(age: timedelta) -> str:
    """Format an age in seconds: `0:00:05 old`, or `in 0:00:05` for a negative one."""
    seconds = timedelta(seconds=round(abs(age.total_seconds())))
    return f"{seconds} old" if age >= timedelta(0) else f"in {seconds}"
