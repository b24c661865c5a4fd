"""The comment, rendered by a Markdown parser: what it says, and that nothing in it escapes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from ml.release.comparison.compare import Compared
from ml.release.comparison.comparison import Side, compare
from ml.reports.comment import MAX_LENGTH, comment, forest_rows, marker
from policies.promotion.engine import decide
from policies.promotion.evidence import Estimate, Evidence, Lineage
from tests.policies import cases
from tests.reports.test_markdown import HOSTILE, MENTION

RENDER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
# All that the comment is made of; `x` would be somebody else's.
OURS = {
    *("h3", "p", "strong", "code", "pre", "table", "thead", "tbody", "tr", "th", "td"),
    *("details", "summary", "a", "img"),
}


def compared(
    candidate: Evidence, champion: Evidence | None, folder: Path, notes: tuple[str, ...] = ()
) -> Compared:
    """As `ml compare` finds it."""
    sides = [
        Side(f"tiny {one.version}", one.digest or "", one) if one else None
        for one in (candidate, champion)
    ]
    assert sides[0] is not None
    request = replace(cases.asked(), digest=candidate.digest or "")
    decision = decide(cases.held(folder), candidate, champion, request)
    made = compare(sides[0], sides[1])
    return Compared(made, decision, "prod", "tiny", None, None, notes)


def elements(said: str) -> set[str]:
    html = RENDER.render(said)
    return set(re.findall(r"<([a-z][a-z0-9]*)", re.sub(r"<!--.*?-->", "", html)))


def test_a_better_candidate(tmp_path: Path):
    """The marker, the verdict, the picture, the numbers; gates that all pass are folded."""
    found = compared(cases.good(0.9), cases.good(0.8, "6", cases.OTHER), tmp_path)
    said = comment(found, repository="https://github.com/o/r")
    assert said.startswith(marker("tiny", "prod") + "\n")
    assert "### tiny 7 against tiny 6 for prod" in said
    assert "**Gates: ✅ pass, approval needed**." in said
    told = r"in gain\\_at\\_1 on test is \+0\.1 \(\+0\.0\d+ to .* 400 units\): better"
    assert re.search(told, said)
    assert "├" in said and "worse ◂" in said
    assert "| gain\\_at\\_1 | test | 0.9000 (0.8600 – 0.9400) |" in said
    assert "<summary>Gates: " in said and "<summary>Slices: 2 slices</summary>" in said
    commit = "e" * 40
    assert f"[`{commit[:12]}`](<https://github.com/o/r/commit/{commit}>)" in said
    assert elements(said) <= OURS
    # Every gate has its row.
    assert said.count("✅ |") == sum(one.verdict == "pass" for one in found.decision.results)


def test_the_interval_is_named_as_it_was_reckoned(tmp_path: Path):
    """A project may ask for more than 95 %: wider, and said to be."""
    found = compared(cases.good(0.9), cases.good(0.8, "6", cases.OTHER), tmp_path)
    made = found.comparison
    assert made.champion
    surer = compare(made.candidate, made.champion, 0.995)
    said = comment(replace(found, comparison=surer))
    assert "with 99.5 % intervals" in said and "95 % intervals" in comment(found)
    assert "95 % intervals" not in said.replace("99.5 %", "")


def test_a_refused_candidate(tmp_path: Path):
    """Which gates say no stands on top, and their table is not folded."""
    said = comment(compared(cases.good(0.5), cases.good(0.8, "6", cases.OTHER), tmp_path))
    assert "**Gates: ❌ refused** (" in said and "`non-inferiority`" in said.split("\n")[4]
    assert "<summary>Gates" not in said and "| ❌ | `quality` |" in said
    assert "▼" in said and "worse" in said


def test_without_a_champion(tmp_path: Path):
    """No column for it, no difference, and the note says why."""
    said = comment(compared(cases.good(), None, tmp_path, ("prod has no champion of tiny yet",)))
    assert "### tiny 7 for prod" in said and "Prod has no champion of tiny yet." in said
    assert "champion |" not in said and "├" not in said


def test_what_is_missing_is_said(tmp_path: Path):
    """Fields by their path; a number that is not there reads missing, not zero."""
    bare = replace(cases.good(), lineage=Lineage(), slices={}, baseline={})
    said = comment(compared(bare, cases.good(0.8, "6", cases.OTHER), tmp_path))
    assert "Missing from the evidence: " in said and "`lineage.commit`" in said
    assert "| commit | missing |" in said


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_names_stay_text(tmp_path: Path, hostile: str):
    """Metric, split, slice, data, hardware and run bear somebody's text: no element, no mention."""
    of = {hostile: Estimate(0.8, 0.7, 0.9, 400)}
    lineage = replace(cases.good().lineage, run_name=hostile, commit=hostile, environment=hostile)
    every = {
        "primary_metric": hostile,
        "metrics": {hostile: of, "test": of},
        "slice_split": "test",
        "slices": {hostile: {hostile: of}},
        "members": {"test": {hostile: {hostile: ("q0001",)}}},
        "data": {hostile: cases.good().data["faq"]},
        "lineage": lineage,
        "latency": replace(cases.good().latency, hardware=hostile, instance_type=hostile),
    }
    sides = [replace(cases.good(share), **every) for share in (0.9, 0.8)]  # type: ignore[arg-type]
    found = compared(sides[0], replace(sides[1], digest=cases.OTHER), tmp_path, (hostile,))
    said = comment(
        replace(found, model=hostile), "https://github.com/o/r", links={hostile: hostile}
    )
    html = RENDER.render(said)
    assert elements(said) <= OURS and html.count("<!--") == 1
    assert not MENTION.search(html) and "javascript:" not in re.findall('href="([^"]*)', html)
    assert html.count("<table>") == len(re.findall(r"^\| ---", said, re.M))
    assert not re.findall(r'<a href="(?!https://github\.com/o/r/commit/)', html)


def test_it_fits_into_a_comment(tmp_path: Path):
    """A thousand slices with long names: rows are left out and said, the whole stays below the
    limit."""
    names = [f"{'x' * 3000}{number}" for number in range(1000)]
    of = {"gain_at_1": Estimate(0.8, 0.7, 0.9, 400)}
    huge = replace(cases.good(), slices={"topic": dict.fromkeys(names, of)})
    huge = replace(huge, metrics={**huge.metrics, **dict.fromkeys(names, of)})
    said = comment(compared(huge, cases.good(0.7, "6", cases.OTHER), tmp_path, tuple(names)))
    assert len(said) <= MAX_LENGTH
    assert "more rows are left out" in said or "did not fit" in said


def test_a_picture_by_its_address(tmp_path: Path):
    """With an address the letters give way to it; what is no web address is no picture."""
    found = compared(cases.good(0.9), cases.good(0.8, "6", cases.OTHER), tmp_path)
    url = "https://example.org/chart.svg"
    assert f"](<{url}>)" in comment(found, chart=url) and "├" not in comment(found, chart=url)
    assert "├" in comment(found, chart="data:image/svg+xml,<svg/>")
    assert [one.label for one in forest_rows(found.comparison)] == [
        *("test", "topic=cost", "topic=data")
    ]


def test_evidence_that_cannot_be_trusted_has_no_table_of_metrics(tmp_path: Path):
    """What is wrong with it is told by the gates; a table without a row says nothing."""
    edited = Evidence(
        model="tiny", version="7", digest=cases.DIGEST, disagreements=("evidence.json was edited",)
    )
    said = comment(compared(edited, cases.champion(0.8), tmp_path))
    assert "| metric |" not in said and "evidence.json was edited" in said
    assert "no evidence that can be trusted" in said and "another version of this code" not in said
