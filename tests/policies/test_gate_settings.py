"""policies.promotion.gate_settings: the policy, and a project's file that only tightens it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ml.core.errors import Problem, UserError
from policies.promotion.gate_settings import POLICY, SETTINGS, load


def write(folder: Path, body: str, name: str = "gates.yml") -> Path:
    """A gates file with the body under `gates:`, which is line 2."""
    path = folder / name
    path.write_text(f"schema_version: 1\ngates:\n{body}")
    return path


def refused(project: Path | None, policy: Path = POLICY) -> Problem:
    """The one problem of these files."""
    with pytest.raises(UserError) as raised:
        load(project, policy)
    (problem,) = raised.value.problems
    return problem


def line(problem: Problem) -> int:
    """The line of a problem."""
    assert problem.place
    return problem.place.line


TIGHTER = {
    "maximum": "  freshness: {max_age_days: 7}",
    "minimum": "  quality: {min_count: 200}",
    "allow-list": "  format: {allowed: [json]}",
    "no place for dirty code": "  lineage: {dirty_allowed_in: []}",
    "demands": "  non-inferiority: {splits: [a, b]}",
    "lower bounds": "  quality: {at_least: {test.gain_at_1: 0.9}}",
    "ceilings": "  quality: {at_most: {test.mean_rank: 2}}",
    "narrower bounds": "  quality: {bounds: {mean_rank: [1, 100]}}",
    "new bounds": "  quality: {bounds: {accuracy: [0, 1]}}",
    "as the policy": "  latency: {p95_ms: 200, mode: enabled}",
}
LOOSER = {
    "maximum": ("  freshness:\n    max_age_days: 31", 4),
    "minimum": ("  quality:\n    min_count: 99", 4),
    "allow-list": ("  format:\n    mode: enabled\n    allowed: [json, pickle]", 5),
    "dirty in prod": ("  lineage: {dirty_allowed_in: [local, prod]}", 3),
    "margin": ("  non-inferiority:\n    margin: 0.03", 4),
    "confidence": ("  superiority:\n    confidence: 0.9", 4),
    "bounds": ("  quality:\n    bounds:\n      gain_at_1: [0, 2]", 5),
    "report-only": ("  sign-off:\n    mode: report-only", 4),
    "disabled": ("  sign-off: {mode: disabled}", 3),
    "latency": ("  latency: {p95_ms: 200.5}", 3),
}
LOOSER |= {
    "slices that are not compared": ("  fairness:\n    min_count: 21", 4),
    "few advisories": ("  supply-chain: {min_advisories: 1}", 3),
}
# Thresholds that nearly every answer meets.
VACUOUS = {
    "a lower bound by a hair": "  quality: {at_least: {t.auc: 0.000001}}",
    "a lower bound below a coin's": "  quality: {at_least: {t.auc: 0.499}}",
    "a lower bound below the rarest class": "  quality: {at_least: {t.average_precision: 0.0001}}",
    "a ceiling by a hair": "  quality: {at_most: {t.brier: 0.999999}}",
    "a ceiling beyond guessing": "  quality: {at_most: {t.log_loss: 36}}",
    "a gap by a hair": "  gap: {at_most: {t.gain_at_1: 0.999999}}",
    "a gap of a loss": "  gap: {at_most: {t.log_loss: 30}}",
    "slices apart by nearly everything": "  fairness: {at_most: {topic.gain_at_1: 0.8}}",
    "a ceiling of a custom metric": "  quality: {bounds: {mae: [0, 9]}, at_most: {t.mae: 8.9}}",
    "a lower bound of zero": "  quality: {at_least: {t.auc: 0}}",
    "a lower bound far below": "  quality: {at_least: {t.auc: -1.0e+300}}",
    "a ceiling at the top": "  quality: {at_most: {t.auc: 1}}",
    "a gap of everything": "  gap: {at_most: {t.auc: 1}}",
    "slices apart as far as can be": "  fairness: {at_most: {topic.auc: 1}}",
    "a lower bound below its bounds": "  quality: {bounds: {mae: [1, 9]}, at_least: {t.mae: 1}}",
}
# Thresholds that no answer meets: those of another scale, as per cent.
UNREACHABLE = {
    "per cent": "  quality: {at_least: {t.auc: 72}}",
    "just above": "  quality: {at_least: {t.auc: 1.01}}",
    "a ceiling below": "  quality: {at_most: {t.mean_rank: 0.5}}",
    "a negative ceiling": "  quality: {at_most: {t.log_loss: -1}}",
    "of a custom metric": "  quality: {bounds: {mae: [1, 9]}, at_least: {t.mae: 10}}",
    "a negative gap": "  gap: {at_most: {t.auc: -0.1}}",
    "slices closer than equal": "  fairness: {at_most: {topic.auc: -0.1}}",
}
WRONG = {
    "bounds upside down": ("  quality: {bounds: {mae: [9, 1]}}", "wrong-value", 3, ""),
    "coverage upside down": (
        "  forecasting: {min_coverage: 0.87, max_coverage: 0.8}",
        "unreachable-gate",
        3,
        "",
    ),
    "unknown gate": ("  latencyy: {p95_ms: 1}", "unknown-field", 3, "did you mean `latency`?"),
    "unknown setting": ("  latency: {p99: 1}", "unknown-field", 3, ""),
    "gate twice": ("  latency: {p95_ms: 1}\n  latency: {p95_ms: 2}", "duplicate-key", 4, ""),
    "threshold twice": (
        "  quality:\n    at_least: {t.gain: 0.9,\n      t.gain: 0.1}",
        "duplicate-key",
        5,
        "",
    ),
    "a key that is a list": ("  quality: {at_least: {? [t] : 1}}", "unreadable-yaml", 3, ""),
    "mode unknown": ("  latency: {mode: off}", "wrong-value", 3, ""),
    "NaN": ("  latency: {p95_ms: .nan}", "wrong-value", 3, ""),
    "infinite": ("  freshness: {max_age_days: .inf}", "wrong-value", 3, ""),
    "negative margin": ("  non-inferiority: {margin: -1}", "wrong-value", 3, ""),
    "confidence of one": ("  superiority: {confidence: 1}", "wrong-value", 3, ""),
    "text for a number": ("  latency: {p95_ms: fast}", "wrong-value", 3, ""),
    "true for a number": ("  latency: {p95_ms: true}", "wrong-value", 3, ""),
    "a name for a list": ("  format: {allowed: json}", "wrong-value", 3, ""),
    "a list for thresholds": ("  quality: {at_least: [1]}", "wrong-value", 3, ""),
    "a threshold without a split": ("  quality: {at_least: {gain: 1}}", "wrong-value", 3, ""),
    "a NaN threshold": ("  quality: {at_least: {t.gain: .nan}}", "wrong-value", 3, ""),
    "half a bound": ("  quality: {bounds: {gain: [0]}}", "wrong-value", 3, ""),
    "a gate that is no mapping": ("  latency: 3", "wrong-value", 3, ""),
    "broken YAML": ("  latency: {p95_ms: [1}", "unreadable-yaml", 3, ""),
    "a tag that would build an object": (
        "  latency: {p95_ms: !!python/object/apply:os.getcwd []}",
        "unreadable-yaml",
        3,
        "",
    ),
}


@pytest.mark.parametrize("body", TIGHTER.values(), ids=TIGHTER)
def test_a_project_may_tighten(body: str, tmp_path: Path) -> None:
    """Each kind of setting may be tightened, and the rest stays the organisation policy's."""
    gates = load(write(tmp_path, body))
    assert set(gates) == set(SETTINGS)
    assert gates["identity"] == load()["identity"]


@pytest.mark.parametrize(("body", "at"), LOOSER.values(), ids=LOOSER)
@pytest.mark.attack("A project loosens a gate in its gates.yml")
def test_a_project_may_not_loosen(body: str, at: int, tmp_path: Path) -> None:
    """Each kind of setting is refused when it is looser, with its file and line."""
    problem = refused(write(tmp_path, body))
    assert problem.code == "gate-looser-than-policy"
    assert str(problem.place) == f"{tmp_path}/gates.yml:{at}"


@pytest.mark.attack("a threshold that every value meets")
@pytest.mark.parametrize("body", VACUOUS.values(), ids=VACUOUS)
def test_a_threshold_that_judges_nothing_is_refused(body: str, tmp_path: Path) -> None:
    """With its line; one that a value can miss is not."""
    problem = refused(write(tmp_path, body))
    assert (problem.code, line(problem)) == ("ineffective-gate", 3)
    inside = "5" if "mae" in body or "loss: 36" in body else "2.5" if "log_loss" in body else "0.5"
    inside = "0.25" if "gap" in body and "log_loss" not in body else inside
    inside = "0.375" if "topic.auc" in body else inside
    head, _, _ = body.rpartition(": ")
    assert load(write(tmp_path, f"{head}: {inside}}}}}"))


@pytest.mark.parametrize("body", UNREACHABLE.values(), ids=UNREACHABLE)
def test_a_threshold_that_nothing_meets_is_refused(body: str, tmp_path: Path) -> None:
    """With its line, before a model is trained for it; the best value itself is a threshold."""
    problem = refused(write(tmp_path, body))
    assert (problem.code, line(problem)) == ("unreachable-gate", 3)
    best = "9" if "mae" in body else "1" if "at_least" in body or "mean_rank" in body else "0"
    head, _, _ = body.rpartition(": ")
    assert load(write(tmp_path, f"{head}: {best}}}}}"))


@pytest.mark.attack("a confidence at which nothing is shown to be worse")
@pytest.mark.parametrize("gate", ["non-inferiority", "superiority"])
@pytest.mark.parametrize("value", ["0.9999999", "0.991", "1"])
def test_a_confidence_has_a_bound_on_both_sides(gate: str, value: str, tmp_path: Path) -> None:
    """With it no slice is ever shown to be worse."""
    assert refused(write(tmp_path, f"  {gate}: {{confidence: {value}}}")).code == "wrong-value"
    assert load(write(tmp_path, f"  {gate}: {{confidence: 0.99}}"))


# The loosest that the policy itself may set, and one step beyond it.
LOOSEST = {
    "freshness.max_age_days": (366, 1e300),
    "quality.min_count": (30, 0.000001),
    "non-inferiority.margin": (0.2, 0.999999),
    "non-inferiority.confidence": (0.8, 0.5000001),
    "non-inferiority.slice_min_count": (1000, 1e300),
    "superiority.confidence": (0.8, 0.5000001),
    "forecasting.min_coverage": (0.5, 0.4999999),
    "forecasting.max_coverage": (0.95, 0.9500001),
    "fairness.min_count": (1000, 1e300),
    "explainability.min_rows": (30, 1),
    "explainability.max_share": (0.99, 0.999999),
    "explainability.max_error": (0.01, 1),
    "explainability.max_error_single": (0.01, 1),
    "explainability.max_error_permuted": (0.5, 1),
    "gap.min_count_beside_folds": (30, 29),
    "serving.min_rows": (30, 29),
    "serving.tolerance": (0.0001, 0.0002),
    "serving.tolerance_single": (0.001, 0.002),
    "latency.p95_ms": (180_000, 1e300),
    "latency.min_requests": (20, 1),
    "supply-chain.max_advisory_age_days": (31, 10_000),
    "supply-chain.min_advisories": (1000, 1),
}


@pytest.mark.attack("a policy that judges nothing by a hair")
@pytest.mark.parametrize("setting", LOOSEST)
def test_the_policy_itself_judges_something(setting: str, tmp_path: Path) -> None:
    """Beyond the loosest value that a person could mean it is refused with its line."""
    gate, _, name = setting.partition(".")
    head, _, rest = POLICY.read_text().partition(f"\n  {gate}:")
    at, text = rest.index(f"    {name}: "), POLICY.read_text()
    old = rest[at:].split(" #")[0].split("\n")[0]
    for value, is_refused in zip(LOOSEST[setting], (False, True), strict=True):
        new = f"    {name}: {value:.7f}" if value < 1e9 else f"    {name}: 1.0e+300"
        policy = tmp_path / "policy.yml"
        policy.write_text(f"{head}\n  {gate}:{rest[:at]}{new}{rest[at + len(old) :]}")
        if not is_refused:
            assert load(None, policy)[gate].number(name) == value
            continue
        problem = refused(None, policy)
        assert problem.code == "wrong-value" and problem.expected
        assert line(problem) == text[: text.index(f"\n  {gate}:")].count("\n") + 2 + rest[
            :at
        ].count("\n")


def test_every_number_of_the_policy_has_a_loosest_value() -> None:
    """A setting that is added needs one."""
    numbers = {
        f"{gate}.{name}"
        for gate, kinds in SETTINGS.items()
        for name in kinds
        if isinstance(load()[gate].settings[name], float)
    }
    assert numbers == set(LOOSEST)


@pytest.mark.attack("bounds that are as wide as can be")
def test_bounds_of_a_metric_are_values_that_it_could_have(tmp_path: Path) -> None:
    """A threshold that leaves out a part of infinity leaves out nothing."""
    wide = "  quality: {bounds: {mae: [0, 1.0e+300]}, at_most: {t.mae: 1.0e+299}}"
    assert refused(write(tmp_path, wide)).code == "wrong-value"
    assert load(write(tmp_path, "  quality: {bounds: {mae: [0, 1.0e+7]}, at_most: {t.mae: 3000}}"))


@pytest.mark.attack("thresholds on a split that decides nothing")
def test_a_threshold_is_on_a_split_that_decides(tmp_path: Path) -> None:
    """On validation alone, which the model is chosen on, it says nothing."""
    body = "  non-inferiority: {{splits: [test]}}\n  quality:\n    at_least: {{{}}}"
    problem = refused(write(tmp_path, body.format("validation.auc: 0.9")))
    assert (problem.code, line(problem)) == ("ineffective-gate", 4)
    assert load(write(tmp_path, body.format("validation.auc: 0.9, test.auc: 0.6")))


@pytest.mark.attack("thresholds of the organisation policy that judge nothing")
def test_a_threshold_of_the_policy_judges_something(tmp_path: Path) -> None:
    """As one of a project does; and a project cannot say what guessing reaches."""
    policy = tmp_path / "policy.yml"
    for value, is_refused in (("0.000001", True), ("0.7", False)):
        new = f"at_least: {{t.auc: {value}}}"
        policy.write_text(POLICY.read_text().replace("    at_least: {}", f"    {new}"))
        if is_refused:
            assert refused(None, policy).code == "ineffective-gate"
        else:
            assert load(None, policy)
    for lower in ("{auc: 0.1}", "{mae: -1}"):
        body = f"  quality: {{loosest_at_least: {lower}, at_least: {{t.auc: 0.7}}}}"
        assert refused(write(tmp_path, body)).code == "gate-looser-than-policy"


@pytest.mark.parametrize(("body", "code", "at", "hint"), WRONG.values(), ids=WRONG)
def test_a_file_with_anything_else_is_refused(
    body: str, code: str, at: int, hint: str, tmp_path: Path
) -> None:
    """Anything that is not a setting is refused with its line."""
    problem = refused(write(tmp_path, body))
    assert (problem.code, line(problem)) == (code, at), problem
    assert hint in problem.hint


ENTRIES = {
    "NaN": (
        "  quality:\n    at_least:\n      t.gain: 0.5\n      t.other: .nan",
        (6, "`gates.quality.at_least.t.other` is nan", "a finite number"),
    ),
    "a text, of a slice": (
        "  fairness:\n    at_most: {topic.gain: 1, topic.other: much}",
        (4, "`gates.fairness.at_most.topic.other` is 'much'", "a number"),
    ),
    "no split": (
        "  gap:\n    at_most:\n      gain: 0.5",
        (5, "`gates.gap.at_most.gain` is 0.5", "an entry such as `SPLIT.METRIC: 0.5`"),
    ),
    "half a bound": (
        "  quality:\n    bounds:\n      mae: [0, 9]\n      mse: [0]",
        (6, "`gates.quality.bounds.mse` is a list of 1", "[lowest, highest]"),
    ),
    "a bound that is wider than the policy's": (
        "  quality:\n    bounds:\n      mae: [0, 9]\n      auc: [0, 2]",
        (
            6,
            "`gates.quality.bounds.auc` is [0.0, 2.0]",
            "no looser than the organisation policy's [0.0, 1.0]",
        ),
    ),
    "an upper bound above the policy's": (
        "  leakage:\n    at_most:\n      clinics.shared: 1\n      feature.auc: 0.99",
        (
            6,
            "`gates.leakage.at_most.feature.auc` is 0.99",
            "no looser than the organisation policy's 0.98",
        ),
    ),
    "a list for a mapping": (
        "  gap: {at_most: [1]}",
        (3, "`gates.gap.at_most` is a list of 1", "a mapping"),
    ),
    "a waiver that is a text": (
        "  {}\nwaivers:\n  - later",
        (
            5,
            "`waivers[0]` is 'later'",
            "a mapping with owner, expires, reason, gate, item, version",
        ),
    ),
    "a waiver of a gate that has none": (
        "  {}\nwaivers:\n  - {gate: verified-metrics, owner: a, expires: 2026-01-01, reason: b}",
        (
            5,
            "`waivers[0]` waives `verified-metrics`",
            "no waiver of `verified-metrics`: every other gate relies on metrics that can be "
            "recomputed",
        ),
    ),
    "a gate that is a number": ("  latency: 3", (3, "`gates.latency` is 3", "a mapping")),
}


@pytest.mark.parametrize(("body", "expected"), ENTRIES.values(), ids=ENTRIES)
def test_the_entry_that_is_wrong_is_shown(
    body: str, expected: tuple[int, str, str], tmp_path: Path
) -> None:
    """Of a mapping, only the line, the name and the value of that entry."""
    problem = refused(write(tmp_path, body))
    assert (line(problem), problem.actual, problem.expected) == expected


@pytest.mark.parametrize(
    ("body", "absent"),
    [
        ("waivers:\n  - {gate: latency, owner: ana}", ["reason", "expires"]),
        ("reviews:\n  - {gate: fairness, owner: ana}", ["finding", "expires"]),
    ],
)
def test_every_field_that_a_statement_lacks_is_listed(
    body: str, absent: list[str], tmp_path: Path
) -> None:
    """Each with what to add and what to write there."""
    path = tmp_path / "gates.yml"
    path.write_text(f"schema_version: 1\n{body}")
    with pytest.raises(UserError) as raised:
        load(path)
    problems = {
        problem.actual.strip("`").rpartition(".")[2]: problem for problem in raised.value.problems
    }
    assert sorted(problems) == sorted(absent)
    for name, problem in problems.items():
        assert f"add `{name}:` (" in problem.hint and line(problem) == 3


def test_two_problems_are_shown_together(tmp_path: Path) -> None:
    """A project that loosens two gates gets both problems."""
    path = write(tmp_path, "  latency: {p95_ms: 300}\n  freshness: {max_age_days: 60}")
    with pytest.raises(UserError) as raised:
        load(path)
    assert sorted(map(line, raised.value.problems)) == [3, 4]


def test_thresholds_of_policy_and_project_add_up(tmp_path: Path) -> None:
    """The policy's thresholds hold beside the project's, and the tighter of two counts."""
    policy = tmp_path / "policy.yml"
    policy.write_text(
        POLICY.read_text().replace("at_least: {}", "at_least: {a.gain: 0.5, b.gain: 0.5}")
    )
    gates = load(write(tmp_path, "  quality: {at_least: {a.gain: 0.6, c.gain: 0.1}}"), policy)
    assert gates["quality"].numbers("at_least") == {"a.gain": 0.6, "b.gain": 0.5, "c.gain": 0.1}
    assert "looser" in refused(write(tmp_path, "  quality: {at_least: {a.gain: 0.4}}"), policy).code


def test_demands_and_allow_lists_of_the_policy_hold(tmp_path: Path) -> None:
    """A split that the organisation policy demands stays demanded."""
    policy = tmp_path / "policy.yml"
    policy.write_text(POLICY.read_text().replace("splits: []", "splits: [test]"))
    assert load(write(tmp_path, "  non-inferiority: {splits: [test, unseen]}"), policy)
    assert (
        "looser" in refused(write(tmp_path, "  non-inferiority: {splits: [unseen]}"), policy).code
    )


def test_a_report_only_policy_may_be_enabled_by_a_project(tmp_path: Path) -> None:
    """A mode is tightened like any other setting."""
    policy = tmp_path / "policy.yml"
    text = POLICY.read_text()
    policy.write_text(
        text.replace(
            "freshness: # old evidence does not describe today's data\n    mode: enabled",
            "freshness:\n    mode: report-only",
        )
    )
    assert load(None, policy)["freshness"].mode == "report-only"
    assert (
        load(write(tmp_path, "  freshness: {mode: enabled}"), policy)["freshness"].mode == "enabled"
    )


@pytest.mark.parametrize("gate", sorted(SETTINGS))
@pytest.mark.attack("A gate is left out of the organisation policy")
def test_a_policy_without_a_gate_is_refused(gate: str, tmp_path: Path) -> None:
    """The organisation policy sets every gate."""
    import yaml

    document = yaml.safe_load(POLICY.read_text())
    del document["gates"][gate]
    policy = tmp_path / "policy.yml"
    policy.write_text(yaml.safe_dump(document))
    problem = refused(None, policy)
    assert problem.code == "missing-field" and f"`gates.{gate}`" in problem.actual


def test_missing_and_unknown_versions_are_refused(tmp_path: Path) -> None:
    """Another schema version and a missing file are reported."""
    path = tmp_path / "gates.yml"
    for text in ("gates: {}\n", "schema_version: 2\n"):
        path.write_text(text)
        assert "`schema_version`" in refused(path).actual
    for text, code in (("", "empty-file"), ("- 1\n", "wrong-value")):
        path.write_text(text)
        assert refused(path).code == code
    assert refused(tmp_path / "none.yml").code == "missing-file"
