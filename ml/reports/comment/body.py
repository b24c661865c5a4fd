"""The comment's body in Markdown: the verdict first, then what it rests on, the rest folded."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ml.release.comparison.compare import Compared
from ml.release.comparison.comparison import Amount, Comparison, Row
from ml.reports.comment import forest
from ml.reports.comment.forest import Span
from ml.reports.comment.markdown import block, code, details, image, link, table, text
from ml.reports.comment.posting import LONGEST, marker
from ml.reports.numbers import count, number
from policies.promotion.decision import Decision, Result
from policies.promotion.evidence import Estimate

# Rows of one table; a hostile or a huge evaluation must not make the comment too long.
ROWS, DRAWN, MISSING = 24, 12, 12
SIGNS = {"pass": "✅", "fail": "❌", "waived": "⚠️", "pending": "⏳", "not asked": "–"}
OUTCOMES = {
    "refused": "❌ refused",
    "pending": "✅ passes, and waits for its approval",
    "approved": "✅ approved",
    "already-champion": "– the champion already",
}
CLEAR = {"better": " ▲", "worse": " ▼", "": ""}


def body(
    found: Compared, repository: str = "", chart: str = "", links: Mapping[str, str] | None = None
) -> str:
    """The whole comment, its marker first.

    `repository` is the address that commits are linked under, `chart` that of a picture to show
    instead of letters, `links` further addresses by their words (a run's report).
    """
    made = found.comparison
    parts = [
        marker(found.model, found.environment),
        f"### {text(made.candidate.name)}{_against(found)}",
        " ".join(_verdict(found)),
        *_chart(made, chart),
        *_tables(made),
        *([_gates(found.decision)] if found.decision else []),
        *([details("What it takes", _amounts(made))] if made.amounts else []),
        details("Where it comes from", _lineage(found, repository, links or {})),
        *_missing(found),
    ]
    return _fitting(parts)


def spans(made: Comparison) -> list[Span]:
    """The paired differences of the primary metric that can be drawn: splits, then slices."""
    rows = [row for row in (*made.metrics, *made.slices) if row.metric == made.primary and row.sign]
    drawn = [
        forest.sound(row.place, row.by.mean, row.by.low, row.by.high, row.sign)
        for row in rows
        if row.by
    ]
    return [one for one in drawn if one][:DRAWN]


def _against(found: Compared) -> str:
    champion = found.comparison.champion
    where = f" for {text(found.environment)}"
    return f" against {text(champion.name)}{where}" if champion else where


def _verdict(found: Compared) -> Iterator[str]:
    decision = found.decision
    if decision:
        said = OUTCOMES[decision.outcome]
        blocking = ", ".join(code(one.gate) for one in decision.blocking)
        yield f"**Gates: {said}**" + (f" ({blocking})." if blocking else ".")
        waived = ", ".join(code(one.gate) for one in decision.waived)
        if waived:
            yield f"Waived, not passed: {waived}."
    made = found.comparison
    first = next((row for row in made.metrics if row.metric == made.primary and row.by), None)
    if first and first.by:
        sure = {"better": "better", "worse": "worse", "": "not shown to differ"}[first.verdict]
        yield (
            f"On {text(first.place)} its {text(first.metric)} is {_signed(first.by.mean)} "
            f"({_signed(first.by.low)} to {_signed(first.by.high)}, {first.by.count:,} units): "
            f"{sure}."
        )
    if made.unpaired:
        yield f"Not compared unit by unit: {text(made.unpaired)}."
    yield from (f"{text(note[:1].upper() + note[1:])}." for note in found.notes)


def _chart(made: Comparison, chart: str) -> Iterator[str]:
    drawn = spans(made)
    if not drawn:
        return
    title = f"{made.primary}: candidate less champion, with {_percent(made)} intervals"
    yield image(title, chart) or f"{text(title)}\n\n{block(forest.letters(drawn))}"


def _tables(made: Comparison) -> Iterator[str]:
    if made.metrics:  # of evidence that is not to be trusted there are none
        yield _rows(made, made.metrics, "metric", "split")
    if made.slices:
        worst = sorted(made.slices, key=_worst)
        clear = sum(row.verdict == "worse" for row in worst)
        said = count(len(worst), "slice") + (f", {clear} of them worse" if clear else "")
        apart = (
            f"Each interval is {_percent(made)} by itself: of many slices, some differ by chance."
        )
        shown = _rows(made, worst, "", "slice")
        paired = any(row.by for row in worst)
        yield details(f"Slices: {said}", f"{shown}\n\n{apart}" if paired else shown)


def _percent(made: Comparison) -> str:
    return f"{made.confidence * 100:g} %"


def _rows(made: Comparison, rows: Sequence[Row], metric: str, place: str) -> str:
    head = [*([metric] if metric else []), place, "candidate"]
    head += ["champion", "difference"] if made.champion else []
    lines = []
    for row in rows[:ROWS]:
        cells = [*([text(row.metric)] if metric else []), text(row.place), _estimate(row.ours)]
        if made.champion:
            cells += [_estimate(row.theirs), _difference(row)]
        lines.append(cells)
    left = len(rows) - len(lines)
    more = f"\n\n{left} more rows are left out." if left > 0 else ""
    return table(head, lines, 3 if made.champion else 1) + more


def _worst(row: Row) -> float:
    """Slices that lose most first; those that cannot be compared last."""
    if row.by is None or not math.isfinite(row.by.mean):
        return math.inf
    return (row.sign or 1) * row.by.mean


def _estimate(of: Estimate | None) -> str:
    if of is None or of.value is None:
        return "missing"
    interval = ""
    if of.low is not None and of.high is not None:
        interval = f" ({number(of.low)} – {number(of.high)})"
    return f"{number(of.value)}{interval}"


def _difference(row: Row) -> str:
    if row.by is None:
        return "not paired"
    interval = f"({_signed(row.by.low)} – {_signed(row.by.high)})"
    return f"{_signed(row.by.mean)} {interval}{CLEAR[row.verdict]}"


def _gates(decision: Decision) -> str:
    rows = [
        [SIGNS.get(one.verdict, "?"), code(one.gate), text(_found(one)), text(one.required)]
        for one in decision.results
    ]
    count = {verdict: sum(one.verdict == verdict for one in decision.results) for verdict in SIGNS}
    said = ", ".join(f"{number} {verdict}" for verdict, number in count.items() if number)
    listed = table(["", "gate", "found", "required"], rows)
    if decision.outcome == "refused":
        return f"{listed}\n\nGates: {said}."
    return details(f"Gates: {said}", listed)


def _found(one: Result) -> str:
    mode = f"[{one.mode}] " if one.mode != "enabled" else ""
    return mode + ": ".join(said for said in (one.found, one.why) if said)


def _amounts(made: Comparison) -> str:
    head = ["", "candidate", *(["champion", "ratio"] if made.champion else [])]
    rows = [
        [text(one.what), _amount(one, one.ours)]
        + ([_amount(one, one.theirs), _ratio(one)] if made.champion else [])
        for one in made.amounts
    ]
    latency = made.candidate.evidence.latency
    where = (
        f"Measured on {text(latency.hardware or 'unnamed hardware')}"
        + (
            f"; the deployment asks for {text(latency.instance_type)}"
            if latency.instance_type
            else ""
        )
        + "."
    )
    return f"{table(head, rows, len(head) - 1)}\n\n{where}"


def _amount(one: Amount, value: float | None) -> str:
    return "missing" if value is None else f"{number(value)} {text(one.unit)}".rstrip()


def _ratio(one: Amount) -> str:
    if not one.ours or not one.theirs:
        return ""
    return f"× {one.ours / one.theirs:.2f}"


def _lineage(found: Compared, repository: str, links: Mapping[str, str]) -> str:
    of = found.comparison.candidate.evidence
    came = of.lineage
    commit = came.commit or ""
    linked = link(code(commit[:12]), f"{repository}/commit/{commit}") if repository else ""
    changes = " with uncommitted changes" if came.dirty else ""
    rows = [
        ["model", _or_missing(found.comparison.candidate.digest, 19)],
        ["run", _or_missing(came.run_name or came.run)],
        ["part of", _or_missing(came.parent_run)],
        ["commit", (linked or _or_missing(commit, 12)) + changes],
        ["code", _or_missing(came.code_snapshot, 19)],
        ["environment", _or_missing(came.environment)],
        ["features", _or_missing(came.feature_set_hash, 12)],
        *(
            [f"data {text(name)}", f"{_or_missing(one.asset)} {_or_missing(one.sha256, 12)}"]
            for name, one in of.data.items()
        ),
        *([text(words), link(text(words), url)] for words, url in links.items()),
    ]
    return table(["", ""], rows)


def _or_missing(value: str | None, letters: int = 80) -> str:
    return code(value[:letters]) if value else "missing"


def _missing(found: Compared) -> Iterator[str]:
    absent = found.comparison.missing
    if not absent:
        return
    shown = ", ".join(code(one) for one in absent[:MISSING])
    more = f" and {len(absent) - MISSING} more" if len(absent) > MISSING else ""
    yield f"Missing from the evidence: {shown}{more}."


def _fitting(parts: Sequence[str]) -> str:
    """The parts that fit into one comment; the later ones give way, and it is said."""
    kept = [part for part in parts if part]
    dropped = 0
    while len(whole := "\n\n".join(kept) + _cut(dropped)) > LONGEST:
        kept.pop()
        dropped += 1
    return whole


def _cut(dropped: int) -> str:
    return f"\n\n{dropped} sections did not fit into a comment.\n" if dropped else "\n"


def _signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", "−")
