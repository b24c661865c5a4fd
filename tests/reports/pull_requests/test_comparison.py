"""The comment, rendered by a Markdown parser: what it says, and that nothing in it escapes."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from syrupy.assertion import SnapshotAssertion

from ml.measures.schema import Estimate
from ml.release.comparison import Comparison, Side, compare
from ml.reports.json_values import Value
from ml.reports.pull_requests import comparison as comments
from ml.reports.pull_requests.comparison import (
    MAX_LENGTH,
    PLOT_ROWS,
    forest_rows,
)
from policies.promotion.engine import decide
from policies.promotion.evidence import Evidence, Lineage
from policies.waivers import GateWaiver
from tests.core.test_markdown import APART, HOSTILE, MENTION
from tests.policies import cases

RENDER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
# All that the comment is made of; `x` would be somebody else's.
OURS = {
    *("h3", "p", "strong", "code", "pre", "table", "thead", "tbody", "tr", "th", "td"),
    *("details", "summary", "a", "img"),
}


def compared(
    candidate: Evidence, champion: Evidence | None, folder: Path, notes: tuple[str, ...] = ()
) -> Comparison:
    """As `ml compare` finds it."""
    sides = [
        Side(f"tiny {one.version}", one.digest or "", one) if one else None
        for one in (candidate, champion)
    ]
    assert sides[0] is not None
    request = replace(cases.request(), digest=candidate.digest or "")
    decision = decide(cases.load_gates(folder), candidate, champion, request)
    made = compare(sides[0], sides[1])
    return replace(made, decision=decision, environment="prod", model="tiny", notes=notes)


def comment(of: Comparison, *words: str, **more: object) -> str:
    return comments.comment(of.to_json(), *words, **more)  # type: ignore[arg-type]


def elements(text: str) -> set[str]:
    html = RENDER.render(text)
    return set(re.findall(r"<([a-z][a-z0-9]*)", re.sub(r"<!--.*?-->", "", html)))


@pytest.mark.parametrize(("share", "difference"), [(0.9, "+0.1"), (0.5, "−0.3")])
def test_a_comment_beside_a_champion(
    share: float, difference: str, tmp_path: Path, snapshot: SnapshotAssertion
):
    """The verdict, the picture, the numbers; gates that pass are folded, failed ones are not."""
    comparison = compared(cases.good(share), cases.good(0.8, "6", cases.OTHER), tmp_path)
    text = comment(comparison, repository="https://github.com/o/r")
    shown, _, folded = text.partition("<summary>Gates: ")
    assert (text if share > 0.8 else shown) == snapshot
    assert f"on test is {difference} (" in text and "❌" not in folded and elements(text) <= OURS
    # Every gate has its row.
    assert text.count("✅ |") == sum(one.verdict == "pass" for one in comparison.decision.results)


@pytest.mark.parametrize(
    ("shares", "words"), [((0.9, 0.8), "the champion"), ((0.8, 0.9), "the candidate")]
)
def test_where_less_is_better_the_better_one_is_named(
    shares: tuple[float, float], words: str, tmp_path: Path
):
    """One sign for a difference wherever it stands, with what the sign means beside it."""
    ours, theirs = shares
    comparison = compared(cases.good(ours), cases.good(theirs, "6", cases.OTHER), tmp_path)
    less = replace(
        comparison,
        metrics=tuple(replace(row, sign=-1) for row in comparison.metrics),
        slices=tuple(replace(row, sign=-1) for row in comparison.slices),
    )
    text = comment(less)
    sign = "+" if ours > theirs else "−"
    assert re.search(rf"is \{sign}0\.1 \(.*lower is better\): {words} is better", text)
    assert "candidate minus champion, lower is better" in text
    plot = next(line for line in text.splitlines() if "●" in line)
    assert f" {sign}0.1 (" in plot
    is_right = plot.index("┊") < plot.index("●")
    assert is_right == (words == "the candidate")
    mark = "better" if is_right else "worse"
    assert re.search(rf"^\| gain.* \| \{sign}0\.1 \(.*\) {mark} \|$", text, re.M)


def test_the_comment_states_the_confidence_of_its_intervals(tmp_path: Path):
    """A project may ask for more than 95 %."""
    comparison = compared(cases.good(0.9), cases.good(0.8, "6", cases.OTHER), tmp_path)
    surer = compare(comparison.candidate, comparison.champion, 0.995)
    text = comment(replace(surer, decision=comparison.decision))
    assert "with 99.5 % intervals" in text and "95 % intervals" in comment(comparison)
    assert "95 % intervals" not in text.replace("99.5 %", "")


def test_a_warning_is_not_folded(tmp_path: Path):
    """It stands with the verdict; what a job calls a feature is no markup."""
    shared, words = cases.good().evaluation.leakage
    hostile = replace(words, value=0.93, of="<img src=x>")
    warned = cases.evaluated(cases.good(0.9), leakage=(shared, hostile))
    text = comment(compared(warned, None, tmp_path))
    first = text.partition("<details>")[0]
    assert "⚠️ Warning of `leakage`: feature.auc " in first
    assert "is 0.93 \\(warning limit 0.9\\)" in first
    assert "1 warn" in text and "| ⚠️ | `leakage`" in text and elements(text) <= OURS


def test_without_a_champion(tmp_path: Path, snapshot: SnapshotAssertion):
    """No column for it, no difference, and the note says why."""
    text = comment(compared(cases.good(), None, tmp_path, ("prod has no champion of tiny yet",)))
    assert text.partition("<details>")[0] == snapshot
    assert "champion |" not in text and "├" not in text


def test_missing_evidence_is_named(tmp_path: Path):
    """Fields by their path; an absent number is "missing", not zero."""
    bare = replace(cases.evaluated(cases.good(), slices={}, baseline={}), lineage=Lineage())
    text = comment(compared(bare, cases.good(0.8, "6", cases.OTHER), tmp_path))
    assert "Missing from the evidence: " in text and "`lineage.commit`" in text
    assert "| commit | missing |" in text


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.attack("A model's or slice's name injects into the comment of a pull request")
def test_hostile_names_are_text(tmp_path: Path, hostile: str):
    """In metric, split, slice, data, hardware and run: no element, no mention."""
    of = {hostile: Estimate(0.8, 0.7, 0.9, 400)}
    lineage = replace(cases.good().lineage, run_name=hostile, commit=hostile, environment=hostile)
    stated = {
        "primary_metric": hostile,
        "metrics": {hostile: of, "test": of},
        "slice_split": "test",
        "slices": {hostile: {hostile: of}},
    }
    every = {
        "members": {"test": {hostile: {hostile: ("q0001",)}}},
        "data": {hostile: cases.good().data["faq"]},
        "lineage": lineage,
        "latency": replace(cases.good().latency, hardware=hostile, instance_type=hostile),
    }
    sides = [
        replace(cases.evaluated(cases.good(share), **stated), **every)  # type: ignore[arg-type]
        for share in (0.9, 0.8)
    ]
    comparison = compared(sides[0], replace(sides[1], digest=cases.OTHER), tmp_path, (hostile,))
    text = comment(replace(comparison, model=hostile), "https://github.com/o/r")
    html = RENDER.render(text)
    assert elements(text) <= OURS and html.replace(APART, "").count("<!--") == 1
    # GitHub finds no mention in code, nor in the words of a picture.
    prose = re.sub(r"<pre>.*?</pre>|<code>.*?</code>", "", html, flags=re.S)
    assert not MENTION.search(prose) and "javascript:" not in re.findall('href="([^"]*)', html)
    assert html.count("<table>") == len(re.findall(r"^\| ---", text, re.M))
    assert not re.findall(r'<a href="(?!https://github\.com/o/r/commit/)', html)


def test_a_comment_is_below_the_limit_of_github(tmp_path: Path):
    """A thousand slices with long names: the comment states how many rows are left out."""
    names = [f"{'x' * 3000}{number}" for number in range(1000)]
    of = {"gain_at_1": Estimate(0.8, 0.7, 0.9, 400)}
    huge = cases.evaluated(cases.good(), slices={"topic": dict.fromkeys(names, of)})
    huge = cases.evaluated(huge, metrics={**huge.evaluation.metrics, **dict.fromkeys(names, of)})
    text = comment(compared(huge, cases.good(0.7, "6", cases.OTHER), tmp_path, tuple(names)))
    assert len(text) <= MAX_LENGTH
    assert "more rows are omitted" in text or "did not fit" in text


def test_the_rows_of_the_plot(tmp_path: Path):
    """The primary metric on the split, then by slice."""
    comparison = compared(cases.good(0.9), cases.good(0.8, "6", cases.OTHER), tmp_path)
    assert "├" in comment(comparison)
    assert [one.label for one in forest_rows(Value(comparison.to_json()))] == [
        *("test", "topic=cost", "topic=data")
    ]


def test_the_plot_has_the_slices_that_lose_most(tmp_path: Path):
    """Where there are more than it can show, in whatever order the evidence has them."""
    comparison = compared(cases.good(0.9), cases.good(0.8, "6", cases.OTHER), tmp_path)
    document = comparison.to_json()
    (first, *_) = document["slices"]
    document["slices"] = [
        {**first, "place": f"topic={mean}", "difference": {"mean": mean, "low": mean, "high": mean}}
        for mean in (0.01 * number for number in range(20, 0, -1))
    ]
    labels = [row.label for row in forest_rows(Value(document))]
    assert len(labels) == PLOT_ROWS and labels[:2] == ["test", "topic=0.01"]
    assert "topic=0.2" not in labels


def test_invalid_evidence_has_no_table_of_metrics(tmp_path: Path):
    """The gates name the reason; an empty table would say nothing."""
    edited = Evidence(
        model="tiny", version="7", digest=cases.DIGEST, mismatches=("evidence.json was edited",)
    )
    text = comment(compared(edited, cases.champion(0.8), tmp_path))
    assert "| metric |" not in text and "evidence.json was edited" in text
    assert (
        "no evidence that can be trusted" in text and "another version of the framework" not in text
    )


@pytest.mark.parametrize("found", ["short", "x" * 900])
def test_the_place_of_a_waiver_is_not_cut(tmp_path: Path, found: str):
    """However long the finding or the reason is, the file and the line are there."""
    comparison = compared(cases.good(0.9), None, tmp_path)
    waiver = GateWaiver(
        owner="ada@example.com",
        expires=date(2026, 7, 1),
        reason="y" * 900,
        gate="gap",
    )
    object.__setattr__(waiver, "place", "ml/projects/tiny/gates.yml:12")
    decision = comparison.decision
    assert decision
    results = tuple(
        replace(one, verdict="waived", actual=found, why=str(waiver)) if one.gate == "gap" else one
        for one in decision.results
    )
    text = comment(replace(comparison, decision=replace(decision, results=results)))
    assert "gates.yml:12" in text.replace("\\", "")


def test_slices_are_corrected_for_their_number(tmp_path: Path):
    """A slice has a verdict by a wider interval; nothing beside it calls the verdict chance."""
    comparison = compared(cases.good(0.9), cases.good(0.8, "6", cases.OTHER), tmp_path)
    alone = compare(comparison.candidate, comparison.champion, 0.95)
    corrected = compare(comparison.candidate, comparison.champion, 0.975).slices
    for row, wider in zip(alone.slices, corrected, strict=True):
        assert row.difference and wider.difference and len(alone.slices) == 2
        assert row.difference.low > wider.difference.low
    assert "chance" not in comment(comparison)
