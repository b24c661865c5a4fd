"""The pull-request comment about a candidate: the verdict, the numbers behind it, details folded.

There is one comment per model and environment, which each push updates. An invisible marker on its
first line identifies it. GitHub lists a pull request's comments under
`/repos/OWNER/REPO/issues/NUMBER/comments` as objects with `id`, `body` and `user.login`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ml.release.comparison import Amount, Comparison, Row
from ml.reports.charts.forest import ForestRow, forest_row, text_plot
from ml.reports.formatting import count, number, sentence, signed_short
from ml.reports.markdown import block, code, details, image, link, table, text
from policies.promotion.decision import Decision, Result
from policies.promotion.evidence import Estimate

# GitHub refuses longer bodies: "Body is too long (maximum is 65536 characters)".
MAX_LENGTH = 65_536
# The most rows of one table, of the plot, and names of missing fields.
ROWS, PLOT_ROWS, MISSING = 24, 12, 12
# Letters of what a gate found.
FINDING_LETTERS = 400
SIGNS = {"pass": "✅", "fail": "❌", "waived": "⚠️", "pending": "⏳", "not asked": "–"}
OUTCOMES = {
    "refused": "❌ refused",
    "pending": "✅ pass, approval needed",
    "approved": "✅ approved",
    "already-champion": "– the champion already",
}
MARKS = {"better": " ▲", "worse": " ▼", "": ""}


@dataclass(frozen=True)
class Posting:
    """What to do with a body: create a comment, update the one with that id, or nothing.

    `duplicates` are the ids of further comments with the same marker and author.
    """

    action: Literal["create", "update", "nothing"]
    id: int | None
    body: str
    duplicates: tuple[int, ...] = ()


def marker(model: str, environment: str) -> str:
    """The first line of the comment about a model in an environment; it is not rendered."""
    # An HTML comment may not contain two hyphens.
    key = re.sub(r"[^\w.]+", "-", f"{model} {environment}").strip("-")
    return f"<!-- ml-compare: {key} -->"


def post(body: str, comments: Sequence[Mapping[str, Any]], author: str) -> Posting:
    """Where a body goes among the existing comments, by its first line, the marker.

    Only comments by `author` are updated, whatever others begin with. Raises ValueError when the
    body does not begin with a marker or is longer than GitHub accepts.
    """
    first = body.split("\n", 1)[0].strip()
    if not first.startswith("<!-- ml-compare: ") or not first.endswith(" -->"):
        raise ValueError(f"the body does not begin with a marker: {first[:80]!r}")
    if len(body) > MAX_LENGTH:
        raise ValueError(f"the body has {len(body):,} characters, GitHub accepts {MAX_LENGTH:,}")
    # The account of a comment may have been deleted.
    bodies = {
        int(comment["id"]): str(comment.get("body") or "").replace("\r\n", "\n")
        for comment in comments
        if (comment.get("user") or {}).get("login") == author
    }
    own = sorted(id for id, text in bodies.items() if text.partition("\n")[0].strip() == first)
    if not own:
        return Posting("create", None, body)
    oldest, *others = own
    is_same = bodies[oldest].strip() == body.strip()
    action: Literal["update", "nothing"] = "nothing" if is_same else "update"
    return Posting(action, oldest, body, tuple(others))


def comment(
    comparison: Comparison,
    repository: str = "",
    chart: str = "",
    links: Mapping[str, str] | None = None,
) -> str:
    """The whole comment, its marker first.

    `repository` is the address that commits are linked under, `chart` that of a picture to show
    in place of the text plot, `links` further addresses by their words (a run's report).
    """
    champion, decision = comparison.champion, comparison.decision
    against = f" against {text(champion.name)}" if champion else ""
    candidate = text(comparison.candidate.name)
    parts = [
        marker(comparison.model, comparison.environment),
        f"### {candidate}{against} for {text(comparison.environment)}",
        " ".join(_verdict(comparison)),
        _plot(comparison, chart),
        *_tables(comparison),
        _gates(decision) if decision else "",
        details("Latency and cost", _amounts(comparison)) if comparison.amounts else "",
        details("Lineage", _lineage(comparison, repository, links or {})),
        _missing(comparison),
    ]
    return _fit([part for part in parts if part])


def forest_rows(comparison: Comparison) -> list[ForestRow]:
    """The paired differences of the primary metric that can be drawn: splits, then slices."""
    rows = [
        forest_row(
            row.place, row.difference.mean, row.difference.low, row.difference.high, row.sign
        )
        for row in (*comparison.metrics, *comparison.slices)
        if row.metric == comparison.primary and row.sign and row.difference
    ]
    return [row for row in rows if row][:PLOT_ROWS]


def _verdict(comparison: Comparison) -> Iterator[str]:
    decision = comparison.decision
    if decision:
        blocking = ", ".join(code(result.gate) for result in decision.blocking)
        yield f"**Gates: {OUTCOMES[decision.outcome]}**" + (f" ({blocking})." if blocking else ".")
        if waived := ", ".join(code(result.gate) for result in decision.waived):
            yield f"Waived, not passed: {waived}."
    primary = (
        row for row in comparison.metrics if row.metric == comparison.primary and row.difference
    )
    if (row := next(primary, None)) and row.difference:
        mean, low, high = map(
            signed_short, (row.difference.mean, row.difference.low, row.difference.high)
        )
        yield (
            f"The difference in {text(row.metric)} on {text(row.place)} is {mean} "
            f"({low} to {high}, {row.difference.count:,} units): "
            f"{row.verdict or 'not shown to differ'}."
        )
    if comparison.unpaired:
        yield f"There are no paired differences: {text(comparison.unpaired)}."
    yield from (text(sentence(note)) for note in comparison.notes)


def _plot(comparison: Comparison, chart: str) -> str:
    rows = forest_rows(comparison)
    if not rows:
        return ""
    title = f"{comparison.primary}: candidate minus champion, with {_percent(comparison)} intervals"
    return image(title, chart) or f"{text(title)}\n\n{block(text_plot(rows))}"


def _tables(comparison: Comparison) -> Iterator[str]:
    if comparison.metrics:  # evidence that is not valid has none
        yield _rows(comparison, comparison.metrics, "metric", "split")
    if comparison.slices:
        slices = sorted(comparison.slices, key=_loss)
        worse = sum(row.verdict == "worse" for row in slices)
        title = count(len(slices), "slice") + (f", {worse} of them worse" if worse else "")
        rows = _rows(comparison, slices, "", "slice")
        if any(row.difference for row in slices):
            rows += (
                f"\n\nEach interval is {_percent(comparison)} by itself: with many slices, some "
                "differ by chance."
            )
        yield details(f"Slices: {title}", rows)


def _rows(comparison: Comparison, rows: Sequence[Row], metric: str, place: str) -> str:
    has_champion = comparison.champion is not None
    head = [*([metric] if metric else []), place, "candidate"]
    head += ["champion", "difference"] if has_champion else []
    lines = []
    for row in rows[:ROWS]:
        cells = [*([text(row.metric)] if metric else []), text(row.place), _estimate(row.ours)]
        lines.append(cells + ([_estimate(row.theirs), _difference(row)] if has_champion else []))
    hidden = len(rows) - len(lines)
    more = f"\n\n{hidden} more rows are left out." if hidden else ""
    return table(head, lines, 3 if has_champion else 1) + more


def _loss(row: Row) -> float:
    """The order of slices: those that lose most first, those that cannot be compared last."""
    if row.difference is None or not math.isfinite(row.difference.mean):
        return math.inf
    return (row.sign or 1) * row.difference.mean


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None or estimate.value is None:
        return "missing"
    interval = ""
    if estimate.low is not None and estimate.high is not None:
        interval = f" ({number(estimate.low)} – {number(estimate.high)})"
    return f"{number(estimate.value)}{interval}"


def _difference(row: Row) -> str:
    if row.difference is None:
        return "not paired"
    mean, low, high = map(
        signed_short, (row.difference.mean, row.difference.low, row.difference.high)
    )
    return f"{mean} ({low} – {high}){MARKS[row.verdict]}"


def _gates(decision: Decision) -> str:
    rows = [
        [
            SIGNS[result.verdict],
            code(result.gate),
            *(text(words, FINDING_LETTERS) for words in (_result(result), result.required)),
        ]
        for result in sorted(decision.results, key=lambda result: not result.blocks)
    ]
    verdicts: list[str] = [result.verdict for result in decision.results]
    counts = ", ".join(f"{n} {verdict}" for verdict in SIGNS if (n := verdicts.count(verdict)))
    gates = table(["", "gate", "found", "required"], rows)
    if decision.outcome == "refused":
        return f"{gates}\n\nGates: {counts}."
    return details(f"Gates: {counts}", gates)


def _result(result: Result) -> str:
    mode = f"[{result.mode}] " if result.mode != "enabled" else ""
    return mode + ": ".join(words for words in (result.found, result.why) if words)


def _amounts(comparison: Comparison) -> str:
    has_champion = comparison.champion is not None
    head = ["", "candidate", *(["champion", "ratio"] if has_champion else [])]
    rows = [
        [text(amount.what), _amount(amount, amount.ours)]
        + ([_amount(amount, amount.theirs), _ratio(amount)] if has_champion else [])
        for amount in comparison.amounts
    ]
    latency = comparison.candidate.evidence.latency
    where = f"Measured on {text(latency.hardware or 'unnamed hardware')}"
    if latency.instance_type:
        where += f"; the deployment asks for {text(latency.instance_type)}"
    return f"{table(head, rows, len(head) - 1)}\n\n{where}."


def _amount(amount: Amount, value: float | None) -> str:
    return "missing" if value is None else f"{number(value)} {text(amount.unit)}".rstrip()


def _ratio(amount: Amount) -> str:
    return f"× {amount.ours / amount.theirs:.2f}" if amount.ours and amount.theirs else ""


def _lineage(comparison: Comparison, repository: str, links: Mapping[str, str]) -> str:
    evidence = comparison.candidate.evidence
    lineage, commit = evidence.lineage, evidence.lineage.commit or ""
    linked = link(code(commit[:12]), f"{repository}/commit/{commit}") if repository else ""
    changes = " with uncommitted changes" if lineage.dirty else ""
    rows = [
        ["model", _code(comparison.candidate.digest, 19)],
        ["run", _code(lineage.run_name or lineage.run)],
        ["part of", _code(lineage.parent_run)],
        ["commit", (linked or _code(commit, 12)) + changes],
        ["code", _code(lineage.code_snapshot, 19)],
        ["environment", _code(lineage.environment)],
        ["features", _code(lineage.feature_set_hash, 12)],
        *(
            [f"data {text(name)}", f"{_code(data.asset)} {_code(data.sha256, 12)}"]
            for name, data in evidence.data.items()
        ),
        *([text(words), link(text(words), url)] for words, url in links.items()),
    ]
    return table(["", ""], rows)


def _code(value: str | None, letters: int = 80) -> str:
    return code(value[:letters]) if value else "missing"


def _missing(comparison: Comparison) -> str:
    fields = comparison.missing
    if not fields:
        return ""
    names = ", ".join(map(code, fields[:MISSING]))
    more = f" and {len(fields) - MISSING} more" if len(fields) > MISSING else ""
    return f"Missing from the evidence: {names}{more}."


def _fit(parts: Sequence[str]) -> str:
    """The parts that fit into one comment; the last ones are dropped, which is stated."""
    for end in range(len(parts), 0, -1):
        dropped = len(parts) - end
        note = f"\n\n{dropped} sections did not fit into a comment.\n" if dropped else "\n"
        body = "\n\n".join(parts[:end]) + note
        if len(body) <= MAX_LENGTH:
            break
    return body


def _percent(comparison: Comparison) -> str:
    return f"{comparison.confidence * 100:g} %"
