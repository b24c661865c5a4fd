"""Write the comment that compares a candidate with the champion: verdict, numbers, details.

The input is the JSON of `ml compare --json`, which may come from an untrusted job. The comment's
first line is an HTML comment that identifies the model and environment.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from ml.core.markdown import block, code, details, link, table, text
from ml.reports.charts.forest import ForestRow, forest_row, text_plot
from ml.reports.formatting import DIRECTIONS, count, number, sentence, signed_short
from ml.reports.json_values import Value

LOCAL = "local"
# Maximum characters of a comment, below GitHub's limit of 65,536.
MAX_LENGTH = 60_000
# Maximum rows of a table and of the plot, notes, and names of missing fields.
ROWS, PLOT_ROWS, NOTES, MISSING = 24, 12, 12, 12
# Maximum characters of a gate's result.
FINDING_LETTERS = 400
SIGNS = {
    "pass": "✅",
    "fail": "❌",
    "waived": "⚠️",
    "warn": "⚠️",
    "pending": "⏳",
    "not evaluated": "–",
}
OUTCOMES = {
    "rejected": "❌ rejected",
    "pending": "✅ pass, approval needed",
    "approved": "✅ approved",
    "already-champion": "– already the champion",
}
# Verdict of a paired difference → text.
BETTER = {"better": "the candidate is better", "worse": "the champion is better"}


def marker(model: str, environment: str) -> str:
    """Return the comment's first line: an HTML comment that names the model and environment."""
    # An HTML comment must not contain two consecutive hyphens.
    key = re.sub(r"[^\w.]+", "-", f"{model} {environment}").strip("-")
    return f"<!-- ml-compare: {key} -->"


def comment(document: Mapping[str, object], repository: str = "") -> str:
    """Return the comment, which begins with its marker, in at most MAX_LENGTH characters.

    `repository` is the repository's URL, for links to commits.
    """
    compared = Value(document)
    first = marker(compared["model"].string[:80], compared["environment"].string[:80])
    return fit([f"{first}\n\n{title(compared)}", *sections(compared, repository)])


def title(compared: Value) -> str:
    """Return candidate, champion and environment as a heading."""
    champion = compared["champion"]
    against = f" against {champion['name'].text()}" if champion else ""
    return (
        f"### {compared['candidate']['name'].text()}{against} for {compared['environment'].text()}"
    )


def sections(compared: Value, repository: str = "") -> Iterator[str]:
    """Yield the sections below the heading, the most important first."""
    yield " ".join(_verdict(compared))
    yield _plot(compared)
    yield from _tables(compared)
    yield _gates(compared["decision"])
    if compared["amounts"]:
        yield details("Latency and cost", _amounts(compared))
    yield details("Lineage", _lineage(compared, repository))
    yield _missing(compared)


def forest_rows(compared: Value) -> list[ForestRow]:
    """Return the plot's rows: the primary metric's paired differences on splits, then on slices.

    Slices with the largest losses come first; rows beyond PLOT_ROWS are left out.
    """
    rows = [
        forest_row(row["place"].string, *difference, int(row["sign"].number or 0))
        for row in (*compared["metrics"], *sorted(compared["slices"], key=_loss))
        if row["metric"].json == compared["primary_metric"].json
        and row["sign"].number in (1, -1)
        and (difference := _interval(row["difference"]))
    ]
    return [row for row in rows if row][:PLOT_ROWS]


def difference_title(compared: Value) -> str:
    """Return the plot's title: the primary metric, and whether higher or lower is better."""
    primary = compared["primary_metric"]
    rows = (row for row in compared["metrics"] if row["metric"].json == primary.json)
    which = next(map(_direction, rows), "").replace(";", ",")
    return f"{primary.string}: candidate minus champion{which}"


def _direction(row: Value) -> str:
    words = DIRECTIONS.get(int(row["sign"].number or 0))
    return f"; {words}" if words else ""


def is_refused(compared: Value) -> bool:
    """Return whether the gates reject the candidate, according to the document."""
    return compared["decision"]["outcome"].json == "rejected"


def _interval(difference: Value) -> tuple[float, float, float] | None:
    """Return mean, low and high; None unless all three are present."""
    mean, low, high = (difference[key].number for key in ("mean", "low", "high"))
    return None if mean is None or low is None or high is None else (mean, low, high)


def _verdict(compared: Value) -> Iterator[str]:
    if decision := compared["decision"]:
        blocking = ", ".join(result["gate"].code() for result in decision["blocking"])
        outcome = OUTCOMES.get(decision["outcome"].string, "❌ unknown")
        yield f"**Gates: {outcome}**" + (f" ({blocking})." if blocking else ".")
        request = decision["request"]
        if request["simulated"].json is True and request["environment"].json != LOCAL:
            yield "Simulated on one machine: its evidence cannot be applied to Azure."
        if stated := request["set_aside"]:
            yield f"⚠️ **Set aside, not beaten**: {stated.text()}."
        waived = [r["gate"].code() for r in decision["results"] if r["verdict"].json == "waived"]
        if waived:
            yield f"Waived, not passed: {', '.join(waived)}."
        for result in decision["results"]:
            for warning in [*result["warnings"]][:NOTES]:
                yield f"⚠️ Warning of {result['gate'].code()}: {warning.text(FINDING_LETTERS)}."
    for row in compared["metrics"]:
        interval = _interval(row["difference"])
        if row["metric"].json == compared["primary_metric"].json and interval:
            mean, low, high = map(signed_short, interval)
            yield (
                f"Candidate minus champion in {row['metric'].text()} on {row['place'].text()} is "
                f"{mean} "
                f"({low} to {high}, {row['difference']['count'].number or 0:,.0f} units"
                f"{_direction(row)}): "
                f"{BETTER.get(row['verdict'].string, 'not significant')}."
            )
            break
    if compared["unpaired"]:
        yield f"There are no paired differences: {compared['unpaired'].text()}."
    yield from (text(sentence(note.string)) for note in [*compared["notes"]][:NOTES])


def _plot(compared: Value) -> str:
    rows = forest_rows(compared)
    if not rows:
        return ""
    words = f"{difference_title(compared)}, with {_percent(compared)} intervals"
    return f"{text(words)}\n\n{block(text_plot(rows))}"


def _tables(compared: Value) -> Iterator[str]:
    if compared["metrics"]:  # invalid evidence has no metrics
        yield _rows(compared, [*compared["metrics"]], ("metric", "split"))
    if compared["slices"]:
        slices = sorted(compared["slices"], key=_loss)
        worse = sum(row["verdict"].json == "worse" for row in slices)
        words = count(len(slices), "slice") + (f", {worse} of them worse" if worse else "")
        yield details(f"Slices: {words}", _rows(compared, slices, ("slice",)))


def _rows(compared: Value, rows: Sequence[Value], names: Sequence[str]) -> str:
    has_champion = bool(compared["champion"])
    head = [*names, "candidate", *(["champion", "difference"] if has_champion else [])]
    lines = []
    for row in rows[:ROWS]:
        cells = [row[key].text() for key in ("metric", "place")][-len(names) :]
        cells.append(_estimate(row["candidate"]))
        lines.append(cells + ([_estimate(row["champion"]), _difference(row)] * has_champion))
    hidden = len(rows) - len(lines)
    more = f"\n\n{hidden} more rows are omitted." if hidden else ""
    return table(head, lines, 3 if has_champion else 1) + more


def _loss(row: Value) -> float:
    """Return the sort key of a slice: the largest losses come first, incomparable slices last."""
    mean = row["difference"]["mean"].number
    if mean is None or not math.isfinite(mean):
        return math.inf
    return (row["sign"].number or 1) * mean


def _estimate(estimate: Value) -> str:
    value, low, high = (estimate[key].number for key in ("value", "low", "high"))
    if value is None:
        return "missing"
    interval = "" if low is None or high is None else f" ({number(low)} – {number(high)})"
    return f"{number(value)}{interval}"


def _difference(row: Value) -> str:
    interval = _interval(row["difference"])
    if interval is None:
        return "not compared by row"
    mean, low, high = map(signed_short, interval)
    return f"{mean} ({low} – {high}) {row['verdict'].text()}".rstrip()


def _gates(decision: Value) -> str:
    """Return a table of the gates that reject the candidate, and a collapsed one of the others."""
    blocking = [result["gate"].json for result in decision["blocking"]]
    results = [*decision["results"]][: 2 * ROWS]
    if not results:
        return ""
    refusing = [result for result in results if result["gate"].json in blocking]
    others = [result for result in results if result["gate"].json not in blocking]
    verdicts = [_mark(result) for result in results]
    counts = ", ".join(f"{n} {verdict}" for verdict in SIGNS if (n := verdicts.count(verdict)))
    folded = details(f"Gates: {counts}", _gate_table(others)) if others else ""
    return "\n\n".join(filter(None, [_gate_table(refusing) if refusing else "", folded]))


def _mark(result: Value) -> str:
    """Return a gate's verdict; `warn` if it passes with warnings."""
    is_warned = result["verdict"].json == "pass" and result["warnings"]
    return "warn" if is_warned else result["verdict"].string


def _gate_table(results: Sequence[Value]) -> str:
    rows = [
        [
            SIGNS.get(_mark(result), "?"),
            result["gate"].code(),
            _result(result),
            text(result["required"].string, FINDING_LETTERS),
        ]
        for result in results
    ]
    return table(["", "gate", "actual", "required"], rows)


def _result(result: Value) -> str:
    mode = result["mode"].string
    parts = (result[key] for key in ("actual", "why"))
    words = ": ".join(part.text(FINDING_LETTERS) for part in parts if part)
    return words if mode == "enabled" else f"\\[{text(mode)}\\] {words}"


def _amounts(compared: Value) -> str:
    has_champion = bool(compared["champion"])
    head = ["", "candidate", *(["champion", "ratio"] if has_champion else [])]
    rows = [
        [amount["what"].text(), _amount(amount, "ours")]
        + [_amount(amount, "theirs"), _ratio(amount)] * has_champion
        for amount in [*compared["amounts"]][:ROWS]
    ]
    hardware = compared["hardware"]
    where = f"Measured on {hardware['measured'].text() or 'unnamed hardware'}"
    if hardware["deployed"]:
        where += f"; the deployment requests {hardware['deployed'].text()}"
    return f"{table(head, rows, len(head) - 1)}\n\n{where}."


def _amount(amount: Value, side: str) -> str:
    value = amount[side].number
    return "missing" if value is None else f"{number(value)} {amount['unit'].text()}".rstrip()


def _ratio(amount: Value) -> str:
    ours, theirs = amount["ours"].number, amount["theirs"].number
    return f"× {ours / theirs:.2f}" if ours and theirs else ""


def _lineage(compared: Value, repository: str) -> str:
    lineage = compared["lineage"]
    commit = lineage["commit"].string
    is_linked = repository and re.fullmatch("[0-9a-f]{40}", commit)
    linked = link(code(commit[:12]), f"{repository}/commit/{commit}") if is_linked else ""
    changes, evaluation_changes = (
        " with uncommitted changes" if dirty else ""
        for dirty in (lineage["dirty"], lineage["evaluation_dirty"])
    )
    rows = [
        ["model", compared["candidate"]["digest"].code(19)],
        ["run", lineage["run_name"].code() if lineage["run_name"] else lineage["run"].code()],
        ["part of", lineage["parent_run"].code()],
        ["commit", (linked or lineage["commit"].code(12)) + changes],
        ["code", lineage["code_snapshot"].code(19)],
        ["evaluation", lineage["evaluation_snapshot"].code(19) + evaluation_changes],
        ["environment", lineage["environment"].code()],
        ["features", compared["features"].code(12)],
        *(
            [f"data {text(name)}", f"{data['asset'].code()} {data['sha256'].code(12)}"]
            for name, data in [*compared["data"].fields()][:ROWS]
        ),
    ]
    return table(["", ""], rows)


def _missing(compared: Value) -> str:
    fields = [*compared["missing"]]
    if not fields:
        return ""
    names = ", ".join(field.code() for field in fields[:MISSING])
    more = f" and {len(fields) - MISSING} more" if len(fields) > MISSING else ""
    return f"Missing from the evidence: {names}{more}."


def fit(parts: Sequence[str], limit: int = MAX_LENGTH) -> str:
    """Join the first parts that fit into `limit` characters, and note how many were dropped."""
    parts = [part for part in parts if part]
    for end in range(len(parts), 0, -1):
        dropped = len(parts) - end
        note = f"\n\n{count(dropped, 'section')} did not fit into a comment.\n" if dropped else "\n"
        body = "\n\n".join(parts[:end]) + note
        if len(body) <= limit:
            break
    return body


def _percent(compared: Value) -> str:
    return f"{100 * (compared['confidence'].number or 0):g} %"
