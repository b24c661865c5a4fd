"""A sweep: history, parallel coordinates, importance, learning curves, the table of trials."""

from __future__ import annotations

from collections.abc import Iterator

from ml.release.selection.contenders import Selected
from ml.reports import origins
from ml.reports.charts.bars import bars
from ml.reports.charts.curves import learning
from ml.reports.charts.history import history
from ml.reports.charts.parallel import parallel
from ml.reports.charts.trials import LONGEST as WHY
from ml.reports.importance import Importance, importance
from ml.reports.markup import Html, table, tag
from ml.reports.numbers import count, duration, number, short
from ml.reports.privacy import plain, shown
from ml.reports.sections.selection import selection
from ml.reports.sections.summary import OUTCOMES, outcomes
from ml.reports.sweeps import Sweep, Trial

# Rows, columns of parameters, and cells of them: the page stays below a megabyte.
ROWS, COLUMNS, CELLS = 200, 20, 2000
# Letters of a text under the pointer.
LONGEST = 80


def sweep(found: Sweep, selected: Selected | None, title: str = "The sweep") -> Html:
    """Everything about the trials."""
    mattered = importance(found)
    return tag(
        "section",
        tag("h2", title),
        history(found),
        outcomes(found),
        selection(selected) if selected else None,
        parallel(found, [] if mattered.is_weak else [name for name, _ in mattered.shares]),
        _importance(mattered),
        learning(found),
        _trials(found),
    )


def _importance(found: Importance) -> Html:
    if not found.shares:
        title = tag("h3", "Parameter importance")
        return tag("figure", title, tag("figcaption", f"Nothing can be said: {found.why}."))
    believed = (
        f"A random forest on {count(found.trials, 'completed trial')} predicts "
        f"{max(0.0, found.explained):.0%} of the variance of trials it has not seen"
    )
    advice = (
        ": too little to rely on the order."
        if found.is_weak
        else "; the bars are shares of what it has learnt."
    )
    said = [f"fANOVA. {believed}{advice}"]
    if found.left_out:
        said.append(f"Not every trial has {', '.join(found.left_out)}: left out.")
    return bars("Parameter importance", found.shares, " ".join(said), found.is_weak)


def _trials(found: Sweep) -> Html:
    ranked = list(found.ranked)
    rest = [trial for trial in found.trials if trial.outcome != "completed"]
    # Stopped trials have a value; those that never had one come last.
    rest.sort(key=lambda trial: (trial.value is None, trial.number))
    every = ranked + rest
    names = found.varied[:COLUMNS]
    rows = every[: min(ROWS, CELLS // max(1, len(names)))]
    notes = []
    if found.alike:
        given = ", ".join(f"{name} = {short(value)}" for name, value in found.alike.items())
        notes.append(f"The same in every trial: {given}.")
    if len(rows) < len(every):
        notes.append(f"{len(rows)} of {len(every):,} trials, best first; job.json has all.")
    if len(names) < len(found.varied):
        notes.append(f"{len(names)} of {len(found.varied)} parameters; job.json has all.")
    return tag(
        "div",
        tag("h3", "Trials"),
        tag("p", " ".join(notes), class_="note") if notes else None,
        table(
            ["trial", found.metric, "outcome", "from", *names, "took", "why"],
            (list(_row(trial, names)) for trial in rows),
            "sortable",
            ("best" if trial is found.best else None for trial in rows),
        ),
    )


def _row(trial: Trial, names: tuple[str, ...]) -> Iterator[object]:
    yield tag("td", trial.number, data_t=trial.number, title=trial.run.name, class_="n")
    if trial.value is None:
        yield tag("td", "–", class_="n")
    else:
        yield tag("td", number(trial.value), title=repr(trial.value), class_="n")
    yield OUTCOMES[trial.outcome]
    came = plain(origins.sentence(trial.origin))
    yield tag("td", origins.short(trial.origin), title=came[:WHY] or None)
    for name in names:
        if name not in trial.run.parameters:
            yield tag("td", "–", class_="n")
            continue
        value = shown(name, trial.run.parameters[name])
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        full = str(value) if short(value) != str(value) else None
        yield tag(
            "td",
            short(value),
            title=full[:LONGEST] if full else None,
            class_="n" if numeric else None,
        )
    took = trial.seconds
    yield tag("td", "" if took is None else duration(took), title=took, class_="n")
    yield trial.why[:WHY]
