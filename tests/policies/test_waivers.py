"""policies.waivers of gates: what a waiver sets aside, what it does not, and what is refused."""

from __future__ import annotations

import json
import math
import os
import subprocess
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.cli.render.release_text import conclusion
from ml.core import git
from ml.core.errors import UserError
from ml.measures.schema import Check, Contribution, Estimate
from ml.release import audit
from policies.promotion.decision import Decision, Request
from policies.promotion.engine import decide
from policies.promotion.evidence import Evidence, Latency, LockedPackage, SupplyChain
from policies.promotion.gate import Gates
from policies.promotion.gate_settings import POLICY, SETTINGS, load
from policies.waivers import NEVER, GateWaiver, merge_days
from tests.local import LOG
from tests.policies.cases import (
    DOCUMENT,
    NOW,
    PROJECT,
    REQUEST,
    UNITS,
    champion,
    evaluated,
    good,
    load_gates,
    outcomes,
    request,
    result,
    sliced,
)
from tests.policies.test_fail_closed import SPOILS, _evidence, _is_bad, _spoiled
from tests.policies.waiver_cases import ALLOWED, INVALID, REFUSED, waiver


def _measured(value: float) -> Evidence:
    low, high = min(value, 0.5), max(value, 0.7)
    stated = {"gain_at_1": Estimate(value, low, high, UNITS)}
    return evaluated(good(), metrics={"test": stated, "validation": stated})


_BASELINE = {"test": {"gain_at_1": Estimate(0.8, 0.7, 0.9, UNITS)}}
_SLOW = replace(good().latency, p95_ms=300.0, p99_ms=300.0)
_LEAKS = (
    Check("identifiers.shared", "question", 0.0, UNITS),
    Check("feature.auc", "balance", 0.99, UNITS),
)
_DIRTY = replace(good(), lineage=replace(good().lineage, dirty=True))

# What the cases name: the evidence, the champion's, the request.
EVIDENCE: dict[str, tuple[Evidence, Evidence | None, Request]] = {
    "too slow": (replace(good(), latency=_SLOW), None, REQUEST),
    "stale": (replace(good(), created=NOW - timedelta(days=31)), None, REQUEST),
    "uncommitted code for prod": (_DIRTY, None, request(environment="prod", simulated=True)),
    "below the threshold": (_measured(0.55), None, REQUEST),
    "chosen on luck": (
        evaluated(
            good(),
            metrics={
                **good().evaluation.metrics,
                "validation": {"gain_at_1": Estimate(0.95, 0.9, 0.99, UNITS)},
            },
        ),
        None,
        REQUEST,
    ),
    "an advisory": (
        replace(good(), supply_chain=replace(good().supply_chain, advisories=("PYSEC-1: a 1",))),
        None,
        REQUEST,
    ),
    "slices too far apart": (
        evaluated(good(), slices={"topic": sliced({"cost": 0.5, "data": 0.9})}),
        None,
        REQUEST,
    ),
    "no better than seasonal naive": (
        evaluated(
            good(),
            task="forecasting",
            metrics={
                **good().evaluation.metrics,
                "test": {
                    **good().evaluation.metrics["test"],
                    "relative_mase": Estimate(0.99, 0.9, 1.1, UNITS),
                    "coverage": Estimate(0.8, 0.75, 0.85, UNITS),
                },
            },
        ),
        None,
        REQUEST,
    ),
    "no slices": (evaluated(good(), slices={}), None, REQUEST),
    "one feature decides": (
        evaluated(good(), contributions=(Contribution("words", 1.0),)),
        None,
        REQUEST,
    ),
    "no contributions": (evaluated(good(), contributions=()), None, REQUEST),
    "two advisories and a licence": (
        replace(
            good(),
            supply_chain=replace(
                good().supply_chain,
                packages={"b": LockedPackage("1", "1", "GPL-3.0-only")},
                advisories=("PYSEC-1: a 1", "PYSEC-2: b 1", "PYSEC-2: c 1"),
            ),
        ),
        None,
        REQUEST,
    ),
    "a leak": (evaluated(good(), leakage=_LEAKS), None, REQUEST),
    "nothing looked for": (evaluated(good(), leakage=()), None, REQUEST),
    "a pickle": (replace(good(), files={"model.pkl": "pickle"}), None, REQUEST),
    "no file": (replace(good(), files={}), None, REQUEST),
    "no packages": (replace(good(), supply_chain=SupplyChain()), None, REQUEST),
    "no validation": (
        evaluated(good(), metrics={"test": good().evaluation.metrics["test"]}),
        None,
        REQUEST,
    ),
    "as good as the baseline": (evaluated(good(), baseline=_BASELINE), None, REQUEST),
    "worse than the champion": (
        replace(good(), outcomes={"test": outcomes(0.7)}),
        champion(0.8),
        request(reason="the champion leaks"),
    ),
    "no latency": (replace(good(), latency=Latency()), None, REQUEST),
    "no date": (replace(good(), created=None), None, REQUEST),
    "from the future": (replace(good(), created=NOW + timedelta(days=1)), None, REQUEST),
    "no metrics": (evaluated(good(), metrics={}), None, REQUEST),
    "a metric that is NaN": (_measured(math.nan), None, REQUEST),
    "no baseline": (evaluated(good(), baseline={}), None, REQUEST),
    "no lineage": (replace(good(), lineage=replace(good().lineage, commit=None)), None, REQUEST),
    "a champion that was not scored": (good(), Evidence(), request(reason="because")),
}


def project(waivers: str) -> str:
    """A project's gates.yml with these waivers, the first in the line after the last of PROJECT."""
    return PROJECT + "waivers:\n" + "".join(f"  {line}\n" for line in waivers.splitlines())


FIRST = len(PROJECT.splitlines()) + 2


def decided(name: str, tmp_path: Path, waivers: str) -> Decision:
    """The decision about the evidence of that name under these waivers."""
    evidence, against, request = EVIDENCE[name]
    return decide(load_gates(tmp_path, project(waivers)), evidence, against, request)


@pytest.mark.parametrize("case", ALLOWED)
def test_a_waiver_that_holds_sets_its_gate_aside(case: str, tmp_path: Path) -> None:
    """Refused without it; with it "waived", with the owner, the reason and the place."""
    evidence, gate, waivers = ALLOWED[case]
    assert decided(evidence, tmp_path, "[]").outcome == "rejected"
    decision = decided(evidence, tmp_path, waivers)
    assert decision.outcome == "pending", decision.blocking
    found = result(decision, gate)
    assert found.verdict == "waived" and found in decision.waived
    told = json.loads(json.dumps(decision.to_json()))["results"]
    (used,) = [one["waivers"] for one in told if one["gate"] == gate]
    assert used
    for kept in used:
        for key in ("owner", "reason", "place", "item"):
            assert kept[key] in found.why
    assert f"gates.yml:{FIRST}" in used[0]["place"] or "second" in case


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.attack("A waiver that does not hold is used")
def test_a_waiver_that_does_not_hold_changes_nothing(case: str, tmp_path: Path) -> None:
    """The gate fails as it did, and the reason names the waiver's file and line."""
    evidence, gate, contains, waivers = REFUSED[case]
    before = result(decided(evidence, tmp_path, "[]"), gate)
    decision = decided(evidence, tmp_path, waivers)
    found = result(decision, gate)
    assert decision.outcome == "rejected" and found in decision.blocking
    assert (found.verdict, found.actual, found.waivers) == ("fail", before.actual, ())
    assert contains in found.why
    # A thing that no waiver names is told by its own name alone.
    assert contains in before.why or f"gates.yml:{FIRST}" in found.why


@pytest.mark.parametrize("case", INVALID)
def test_an_invalid_waiver_is_refused(case: str, tmp_path: Path) -> None:
    """With its line, when the file is read, and not only when the waiver is needed."""
    contains, waivers = INVALID[case]
    with pytest.raises(UserError) as raised:
        load_gates(tmp_path, project(waivers))
    problem = raised.value.problems[0]
    assert problem.place and problem.place.line == FIRST + waivers.count("\n") - 1
    assert contains in str(problem)


def test_waivers_are_a_list(tmp_path: Path) -> None:
    """The problem is at the line of their field."""
    with pytest.raises(UserError, match="a list: a dash") as raised:
        load_gates(tmp_path, project("latency: {reason: r, owner: ana, expires: 2025-06-30}"))
    assert raised.value.problems[0].place and raised.value.problems[0].place.line == FIRST - 1


def test_a_passing_gate_needs_no_waiver(tmp_path: Path) -> None:
    """A gate that passes is not waived."""
    decision = decide(load_gates(tmp_path, project(waiver("latency"))), good(), None, REQUEST)
    assert result(decision, "latency").verdict == "pass" and not decision.waived


def test_a_used_waiver_is_reported(tmp_path: Path) -> None:
    """In the sentence that a person reads, and in the audit log with owner, reason and place."""
    decision = decided("too slow", tmp_path, waiver("latency"))
    assert "waived, not passed: latency" in conclusion(decision)
    audit.append(LOG, "decision", {"decision": decision.to_json()})
    kept: Any = audit.verify(LOG)[0]["decision"]
    ((used,),) = [one["waivers"] for one in kept["results"] if one["waivers"]]
    assert (used["owner"], used["reason"], used["expires"]) == ("ana", "r", "2025-06-30")


def test_the_policy_waives_nothing(tmp_path: Path) -> None:
    """A waiver there would hold for every project."""
    policy = tmp_path / "policy.yml"
    policy.write_text(POLICY.read_text() + "waivers: []\n")
    with pytest.raises(UserError, match=r"unknown-field.*`waivers`"):
        load(None, policy)


def test_every_gate_may_be_waived_or_has_a_reason_why_not(tmp_path: Path) -> None:
    """The gates that cannot be waived exist; each other gate has a case that is waived."""
    waived = {gate for _, gate, _ in ALLOWED.values()}
    assert waived == SETTINGS.keys() - NEVER.keys() and NEVER.keys() < SETTINGS.keys()


@pytest.fixture(scope="module")
def waiving(tmp_path_factory: pytest.TempPathFactory) -> Gates:
    """Every gate with a waiver that holds, also the gates that a file cannot waive."""
    found = load_gates(tmp_path_factory.mktemp("gates"))
    return {
        name: replace(
            gate,
            waivers=(GateWaiver(gate=name, reason="r", owner="ana", expires=date(2025, 6, 30)),),
        )
        for name, gate in found.items()
    }


@settings(max_examples=300, deadline=None)
@given(spoils=SPOILS)
@pytest.mark.attack("A waiver stands in for missing evidence")
def test_no_waiver_replaces_missing_evidence(
    waiving: Gates, spoils: list[tuple[tuple[str, ...], Any]]
) -> None:
    """Broken in any places, with a waiver of every gate, evidence is still refused."""
    document = DOCUMENT
    for path, value in spoils:
        if _is_bad(path, value):
            document = _spoiled(document, path, value)
    if document != DOCUMENT:
        assert not decide(waiving, _evidence(document), None, REQUEST).allowed


@settings(max_examples=150, deadline=None)
@given(
    evidence=st.sampled_from(sorted(EVIDENCE)),
    value=st.floats(),
    p95=st.floats(),
    days=st.integers(-10, 200),
)
def test_a_waiver_only_turns_a_failure_into_waived(
    waiving: Gates, evidence: str, value: float, p95: float, days: int
) -> None:
    """It changes no other verdict, and the decision shows what it set aside."""
    plain = {name: replace(gate, waivers=()) for name, gate in waiving.items()}
    found, against, request = EVIDENCE[evidence]
    stated = {"gain_at_1": Estimate(value, value, value, UNITS)}
    metrics = {"test": stated, "validation": good().evaluation.metrics["validation"]}
    latency = replace(good().latency, p95_ms=p95, p99_ms=p95)
    found = evaluated(found, metrics=metrics)
    found = replace(found, latency=latency, created=NOW - timedelta(days=days))
    before, after = (decide(gates, found, against, request) for gates in (plain, waiving))
    for one, other in zip(before.results, after.results, strict=True):
        assert (one.actual, one.required) == (other.actual, other.required)
        assert other.verdict in (one.verdict, "waived" if one.verdict == "fail" else one.verdict)
        assert bool(other.waivers) == (other.verdict == "waived")
    if after.outcome != before.outcome:
        assert after.waived


def repository(folder: Path) -> Path:
    """A git repository in the folder; its gates.yml is not there yet."""
    _git(folder, "init", "-q", "-b", "main")
    _git(folder, "config", "user.email", "a@example.org")
    _git(folder, "config", "user.name", "a")
    return folder / "gates.yml"


def _git(folder: Path, *words: str, day: str = "2025-06-01") -> None:
    dates = dict.fromkeys(("GIT_COMMITTER_DATE", "GIT_AUTHOR_DATE"), f"{day}T12:00:00Z")
    subprocess.run(["git", *words], cwd=folder, check=True, env={**os.environ, **dates})


def _series(*days: date) -> str:
    return "".join(
        f"- {{gate: latency, reason: slow image, owner: ana, expires: {day}}}\n" for day in days
    )


def _holds(file: Path, today: date) -> list[bool]:
    return [not waiver.expired(today) for waiver in load(file)["latency"].waivers]


FIRST_DAY = date(2025, 6, 1)
FORTY = [FIRST_DAY + timedelta(days=90 * number) for number in range(1, 41)]


@pytest.mark.attack("forty waivers that were dated in advance")
def test_a_series_in_advance_covers_no_more_than_its_first(tmp_path: Path) -> None:
    """Merged on one day, only the first holds, and on no later day another."""
    file = repository(tmp_path)
    file.write_text(project(_series(*FORTY)))
    _git(tmp_path, "add", "gates.yml")
    _git(tmp_path, "commit", "-q", "-m", "waivers")
    assert _holds(file, FIRST_DAY) == [True] + [False] * 39
    for later in (100, 200, 1000, 3500):
        assert not any(_holds(file, FIRST_DAY + timedelta(days=later)))


@pytest.mark.attack("waivers in advance where no history of git says when they were merged")
def test_without_a_history_a_series_in_advance_holds_for_no_day(tmp_path: Path) -> None:
    """Until the end of the last is near; one waiver alone holds as before."""
    file = tmp_path / "gates.yml"
    file.write_text(project(_series(*FORTY)))
    assert not any(_holds(file, FIRST_DAY))
    file.write_text(project(_series(FORTY[0])))
    assert _holds(file, FIRST_DAY) == [True]
    # Two within the longest time are a renewal.
    file.write_text(project(_series(FIRST_DAY + timedelta(days=20), FORTY[0])))
    assert _holds(file, FIRST_DAY) == [True, True]


@pytest.mark.attack("a waiver on a branch whose commits bear another date")
def test_a_waiver_begins_on_the_day_of_its_merge(tmp_path: Path) -> None:
    """The merge commit counts, and a renewal that is merged later holds then."""
    file = repository(tmp_path)
    file.write_text(project("[]"))
    _git(tmp_path, "add", "gates.yml")
    _git(tmp_path, "commit", "-q", "-m", "none", day="2025-01-01")
    _git(tmp_path, "switch", "-q", "-c", "branch")
    file.write_text(project(_series(date(2025, 12, 1))))
    _git(tmp_path, "commit", "-q", "-a", "-m", "dated ahead", day="2025-11-01")
    _git(tmp_path, "switch", "-q", "main")
    _git(tmp_path, "merge", "-q", "--no-ff", "-m", "merged", "branch", day="2025-06-01")
    (waiver,) = load(file)["latency"].waivers
    assert waiver.merged == FIRST_DAY
    assert "for more than 90 days, from its merge on 2025-06-01" in waiver.expired(
        date(2025, 11, 5)
    )
    file.write_text(project(_series(date(2025, 12, 2))))
    _git(tmp_path, "commit", "-q", "-a", "-m", "renewed", day="2025-11-03")
    assert _holds(file, date(2025, 11, 5)) == [True]
    assert _holds(file, date(2025, 11, 1)) == [False]  # it was not merged yet


@pytest.mark.attack("another history of git says when a waiver was merged")
@pytest.mark.parametrize("how", ["variables", "replacement", "ignored"])
def test_another_history_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Neither variables of git, nor objects that stand in for others, nor commits left out."""
    file = repository(tmp_path)
    file.write_text(project("[]"))
    _git(tmp_path, "add", "gates.yml")
    _git(tmp_path, "commit", "-q", "-m", "none", day="2025-05-01")
    file.write_text(project(_series(FORTY[0])))
    _git(tmp_path, "commit", "-q", "-a", "-m", "merged")
    if how == "variables":
        (tmp_path / "other").mkdir()
        other = repository(tmp_path / "other")
        other.write_text(file.read_text())
        _git(other.parent, "add", "gates.yml")
        _git(other.parent, "commit", "-q", "-m", "another day", day="2025-09-01")
        monkeypatch.setenv("GIT_DIR", str(other.parent / ".git"))
        monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    elif how == "replacement":
        _git(tmp_path, "commit", "-q", "--amend", "-m", "another day", day="2025-09-01")
        _git(tmp_path, "replace", "HEAD@{1}", "HEAD")
        _git(tmp_path, "reset", "-q", "--soft", "HEAD@{1}")
    else:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True)
        (tmp_path / "left-out").write_bytes(commit.stdout)
        _git(tmp_path, "config", "blame.ignoreRevsFile", "left-out")
    assert [waiver.merged for waiver in load(file)["latency"].waivers] == [FIRST_DAY]


@pytest.mark.attack("a shallow clone, in which every line is as old as the clone")
def test_a_shallow_clone_says_nothing_of_the_past(tmp_path: Path) -> None:
    """Its only commit is no day of a merge: the series counts together."""
    (tmp_path / "whole").mkdir()
    file = repository(tmp_path / "whole")
    file.write_text(project(_series(*FORTY)))
    _git(tmp_path / "whole", "add", "gates.yml")
    _git(tmp_path / "whole", "commit", "-q", "-m", "waivers")
    file.with_name("other").write_text("x")
    _git(tmp_path / "whole", "add", "other")
    _git(tmp_path / "whole", "commit", "-q", "-m", "other", day="2026-06-01")
    url = f"file://{tmp_path / 'whole'}"
    _git(tmp_path, "clone", "-q", "--depth", "1", url, "shallow")
    assert not any(_holds(tmp_path / "shallow" / "gates.yml", date(2026, 6, 2)))


def test_names_of_commits_may_be_longer(tmp_path: Path) -> None:
    """In a repository of SHA-256."""
    _git(tmp_path, "init", "-q", "-b", "main", "--object-format=sha256")
    file = repository(tmp_path)
    file.write_text(project(_series(FORTY[0])))
    _git(tmp_path, "add", "gates.yml")
    _git(tmp_path, "commit", "-q", "-m", "waivers")
    assert [waiver.merged for waiver in load(file)["latency"].waivers] == [FIRST_DAY]


def test_git_is_asked_twice_whatever_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a first commit, where each line is as old as the history: a fork begins so."""
    file, asked = repository(tmp_path), []
    file.write_text(project(_series(*FORTY)))
    _git(tmp_path, "add", "gates.yml")
    _git(tmp_path, "commit", "-q", "-m", "first")
    ask = git.ask
    monkeypatch.setattr(git, "ask", lambda *words: asked.append(words) or ask(*words))
    assert len(merge_days(file)) == len(file.read_text().splitlines()) > 40
    assert len(asked) == 2


INVISIBLE = [
    *(
        "\u200b",
        "\u2060\u2060",
        "\u3164",
        "\u115f",
        "\u2800",
        "a\u202eb",
        "\x1b[8mana",
        "...",
        "1",
        "a\u034f",
    ),
]


@pytest.mark.attack("a name or a reason of characters that cannot be seen")
@pytest.mark.parametrize("text", INVISIBLE)
def test_invisible_words_are_refused(text: str, tmp_path: Path) -> None:
    """Of an owner, of a reason, of who approves, and of why a champion is replaced."""
    for field in ("owner", "reason"):
        fields = {"gate": "latency", "owner": "ana", "reason": "slow", field: text}
        body = json.dumps(fields).replace('"latency"', "latency")[:-1] + ", expires: 2025-06-30}"
        with pytest.raises(UserError, match=r"visible characters|not empty"):
            load_gates(tmp_path, project(f"- {body}"))
    gates = load_gates(tmp_path)
    asked = replace(request(approved_by=text), step="apply")
    assert result(decide(gates, good(), None, asked), "sign-off").verdict == "fail"
    evidence, against, _ = EVIDENCE["worse than the champion"]
    decided = decide(gates, evidence, against, request(reason=text))
    assert result(decided, "superiority").verdict == "fail"


@pytest.mark.parametrize("text", ["ana", "José Ñ", "李雷", "Ana-María O'Neil", "محمد"])
def test_names_of_people_are_accepted(text: str, tmp_path: Path) -> None:
    """In any script."""
    waivers = f'- {{gate: latency, owner: "{text}", reason: "{text} 1", expires: 2025-06-30}}'
    assert load_gates(tmp_path, project(waivers))["latency"].waivers[0].owner == text
