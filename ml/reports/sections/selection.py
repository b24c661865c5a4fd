"""Which trial the score would take, beside the one that is first by the metric."""

from __future__ import annotations

from ml.release.selection import choosing
from ml.release.selection.contenders import Selected
from ml.release.selection.selection import Ranked
from ml.reports.charts.pareto import pareto
from ml.reports.markup import Html, join, table, tag
from ml.reports.numbers import number

ROWS = 20
UNITS = {"latency": "latency, ms", "cost": "cost, s", "stability": "spread"}


def selection(found: Selected) -> Html | None:
    """None when nothing but the metric was measured: then there is nothing to weigh."""
    made = found.selection
    terms = [term for term in UNITS if term in made.compared]
    if not terms:
        return None
    said = [f"{one[0].upper()}{one[1:]}." for one in choosing.sentences(made)]
    shown = made.ranked[:ROWS]
    if len(shown) < len(made.ranked):
        said.append(f"{len(shown)} of {len(made.ranked):,} trials, best first.")
    notes = " ".join(f"{note[0].upper()}{note[1:]}." for note in found.notes)
    return join(
        [
            tag("h3", "Selection"),
            tag("p", " ".join(said)),
            tag("p", f"{choosing.formula(made)}. {notes}", class_="note"),
            pareto(made) or "",
            table(
                ["trial", "score", made.metric, *(UNITS[term] for term in terms), "front"],
                ([*_row(one, terms)] for one in shown),
                "sortable",
            ),
        ]
    )


def _row(one: Ranked, terms: list[str]) -> list[object]:
    cells: list[object] = [one.contender.label.removeprefix("trial ")]
    score = "–" if one.score is None else f"{one.score:.2f}"
    cells.append(tag("td", score, title=one.score, class_="n"))
    for term in ("quality", *terms):
        value = one.contender.terms.get(term)
        why = one.missing.get(term)
        cells.append(tag("td", why or number(value or 0.0), title=value, class_="n"))
    return [*cells, {True: "yes", False: "", None: "?"}[one.on_front]]
